"""``pocketserve reload``: the server reads its folder again, and loads models anew."""

from __future__ import annotations

import argparse
from typing import Any

from pocketserve.cli.commands.models import print_kept
from pocketserve.messages import plural
from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.progress import Progress


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    text = "read the models folder again, and load models anew at once"
    parser: argparse.ArgumentParser = commands.add_parser(
        "reload", help=text, description=f"{text.capitalize()}."
    )
    parser.add_argument(
        "model",
        nargs="*",
        help="load these anew; without one, the folder is read again",
    )
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Load the models that are named, or have the folder read."""
    with open_client(options) as client, reading_answers():
        for model in options.model:
            with Progress().waiting(f"loading {model}"):
                client.load(model)
            print(f"{model} is loaded anew.")
        if not options.model:
            entries = client.index()
            models = {entry["name"] for entry in entries}
            print(f"The folder was read again; it has {plural(len(models), 'model')}.")
            print_kept(entries)
    return 0
