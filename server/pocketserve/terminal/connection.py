"""Add the options of commands that use a running server."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.token_file import token_file_fault

if TYPE_CHECKING:
    from pocketserve_client import Client


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--url`` and ``--token-file``."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="http://… or socket://… [POCKETSERVE_URL, else this machine]",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="PATH",
        help="where the server keeps its token",
    )


def open_client(options: argparse.Namespace) -> Client:
    """Create a client from the options."""
    if options.token_file is not None:
        fault = token_file_fault(options.token_file)
        if fault is not None:
            raise CommandError(fault)
    from pocketserve_client import Client  # late: --help needs no client

    return Client(options.url, token_file=options.token_file)


@contextlib.contextmanager
def reading_answers() -> Iterator[None]:
    """Turn errors from reading an unexpected answer into a ``CommandError``."""
    try:
        yield
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise CommandError(
            "the answer is not one of a pocketserve server of this version; check the "
            "address, or update the older one (--debug shows what is wrong with it)"
        ) from error
