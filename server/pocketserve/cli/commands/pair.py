"""``pocketserve pair``: gives an app the token by a code."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pocketserve.messages import plural
from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.errors import EXIT_DONE, CommandError
from pocketserve.terminal.output import printable

if TYPE_CHECKING:
    from pocketserve_client import Client

WAIT_MS = 2_000
MAX_OPEN_S = 3600.0
"""The longest pairing that is accepted: the server is not trusted yet."""
_ENDS = {
    "refused": (
        "too many attempts: another app may have interfered or be guessing; "
        "the token was not sent"
    ),
    "expired": "the code has expired; run `pocketserve pair` again when the app asks for it",
    "closed": "another command closed pairing; run `pocketserve pair` again",
}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "pair", help="show a code of ten digits with which an app gets the token"
    )
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Open pairing, show the code, and wait for the result."""
    from pocketserve_client.errors import PocketserveError

    with open_client(options) as client, reading_answers():
        opened = client.open_pairing()
        try:
            remaining_s = _show_code(opened)
            state = _wait(client, remaining_s)
        except BaseException:
            with contextlib.suppress(PocketserveError):
                client.close_pairing()
            raise
    if state == "paired":
        print("Paired: the app has the token.")
        return EXIT_DONE
    unknown = f"the server says {state!r}, which this version does not know; update it"
    raise CommandError(_ENDS.get(state, unknown))


def _show_code(opened: Mapping[str, Any]) -> float:
    """Print the code; return the seconds for which it is valid."""
    code = printable(str(opened["code"]))
    remaining_s = float(opened["remaining_s"])
    if not 0 < remaining_s <= MAX_OPEN_S:
        raise ValueError("remaining_s is not a valid time")
    digits = f"{code[:3]} {code[3:6]} {code[6:]}"
    print(f"Type this code in the app:  {digits}", flush=True)
    seconds = plural(round(remaining_s), "second")
    print(f"It is valid for {seconds} and one app. Ctrl-C closes it.", flush=True)
    return remaining_s


def _wait(client: Client, remaining_s: float) -> str:
    """Return how pairing ended."""
    # The server should end it in time.
    deadline = time.monotonic() + remaining_s + WAIT_MS / 1000
    while True:
        state = client.pairing_state(wait_ms=WAIT_MS)
        if state != "open":
            return state
        if time.monotonic() > deadline:
            raise CommandError("the server keeps pairing open for too long; restart it")
