"""``pocketserve reload``: reads the models folder again, and reloads models."""

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
    text = "rescan the models folder, or reload models"
    parser: argparse.ArgumentParser = commands.add_parser(
        "reload", help=text, description=f"{text.capitalize()}."
    )
    parser.add_argument(
        "model",
        nargs="*",
        help="the models to reload; without one, rescan the folder",
    )
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Reload the named models, or have the server read its folder."""
    with open_client(options) as client, reading_answers():
        for model in options.model:
            with Progress().waiting(f"loading {model}"):
                client.load(model)
            print(f"{model} was reloaded.")
        if not options.model:
            entries = client.index()
            models = {entry["name"] for entry in entries}
            print(f"The folder was rescanned; it has {plural(len(models), 'model')}.")
            print_kept(entries)
    return 0
