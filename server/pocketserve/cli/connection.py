"""The options of commands that talk to a running server."""

from __future__ import annotations

import argparse
from pathlib import Path

from pocketserve_client import Client


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """``--url`` and ``--token-file``."""
    parser.add_argument("--url", metavar="URL", help="the server [POCKETSERVE_URL, else http://127.0.0.1:8470]")
    parser.add_argument("--token-file", type=Path, metavar="PATH", help="where the server keeps its token")


def connect(options: argparse.Namespace) -> Client:
    """A client as the options say."""
    return Client(options.url, token_file=options.token_file)
