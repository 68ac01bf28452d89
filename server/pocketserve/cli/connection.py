"""The options of commands that talk to a running server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.cli import CommandError

if TYPE_CHECKING:
    from pocketserve_client import Client


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """``--url`` and ``--token-file``."""
    parser.add_argument("--url", metavar="URL", help="http://… or socket://… [POCKETSERVE_URL, else this machine]")
    parser.add_argument("--token-file", type=Path, metavar="PATH", help="where the server keeps its token")


def connect(options: argparse.Namespace) -> Client:
    """A client as the options say.

    Raises:
        CommandError: the token file that was named cannot be read.
    """
    path = options.token_file
    if path is not None:
        try:
            path.read_bytes()
        except OSError as error:
            raise CommandError(f"the token file {path} cannot be read: {error.strerror}") from None
    from pocketserve_client import Client  # late: --help needs no client

    return Client(options.url, token_file=options.token_file)
