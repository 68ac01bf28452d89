"""``pocketserve models``: what a server serves."""

from __future__ import annotations

import argparse
from typing import Any

from pocketserve.cli.connection import add_connection_options, connect
from pocketserve.cli.output import print_json, print_table


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command's options."""
    parser: argparse.ArgumentParser = commands.add_parser("models", help="list the models of a running server")
    add_connection_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print every version of every model."""
    with connect(options) as client:
        entries = client.index()
    if options.json:
        print_json(entries)
    elif entries:
        rows = [[entry["name"], entry.get("version", ""), entry["state"], entry.get("reason", "")] for entry in entries]
        print_table(["MODEL", "VERSION", "STATE", "NOTE"], rows)
    else:
        print("The models folder is empty. Put a model file into it and run this command again.")
    return 0
