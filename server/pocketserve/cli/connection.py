"""The options of commands that talk to a running server, and the checks of the token file that they name."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.cli import CommandError
from pocketserve_wire.files.plain_file import open_plain

if TYPE_CHECKING:
    from pocketserve_client import Client

MAX_TOKEN_FILE = 1024
"""Bytes; the server's own reading stops there."""


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--url`` and ``--token-file``."""
    parser.add_argument("--url", metavar="URL", help="http://… or socket://… [POCKETSERVE_URL, else this machine]")
    parser.add_argument("--token-file", type=Path, metavar="PATH", help="where the server keeps its token")


def open_client(options: argparse.Namespace) -> Client:
    """Return a client as the options say."""
    fault = token_file_fault(options.token_file) if options.token_file is not None else None
    if fault is not None:
        raise CommandError(fault)
    from pocketserve_client import Client  # late: --help needs no client

    return Client(options.url, token_file=options.token_file)


@contextlib.contextmanager
def reading_answers() -> Iterator[None]:
    """Turn what a foreign server's answer does to the code that reads it into a sentence."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CommandError(
            "the answer is not one of a pocketserve server of this version; look at the address, or update the older "
            "of the two (--debug shows what is wrong with it)"
        ) from error


def token_file_fault(path: Path) -> str | None:
    """Return why a file gives a client no token; None if it may."""
    try:
        with open_plain(path) as file:
            text = file.read(MAX_TOKEN_FILE + 1).strip()
    except OSError as error:
        return f"the token file {path} cannot be read: {error.strerror}"
    if len(text) > MAX_TOKEN_FILE or len(text.split()) != 1 or not text.isascii():
        return (
            f"{path} holds no token: it is another file (`pocketserve token --path` prints the name of the right one)"
        )
    return None


def token_variable_fault() -> str | None:
    """Return what is wrong with the token file in the environment, where the token would have come from it."""
    path = os.environ.get("POCKETSERVE_TOKEN_FILE")
    if not path or os.environ.get("POCKETSERVE_TOKEN"):
        return None
    fault = token_file_fault(Path(path))
    return f"{fault}; POCKETSERVE_TOKEN_FILE names it" if fault is not None else None
