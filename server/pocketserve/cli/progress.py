"""How far a long command has come: a bar on a terminal, plain lines elsewhere where they are wanted."""

from __future__ import annotations

import sys
import time

from pocketserve.cli.output import print_control, printable

CLEAR_LINE = "\r\033[K"
BAR_WIDTH = 30
BAR_EVERY_S = 0.1


class Progress:
    """Written to standard error.

    Args:
        lines: without a terminal, say a line for each thing that is begun; else nothing.
    """

    def __init__(self, *, lines: bool = False) -> None:
        self._lines = lines
        self._shown = 0.0
        self._what = ""

    def show(self, what: str, done: float) -> None:
        """Say what is being done and which share of it is over, 0 to 1. Calling it often costs little."""
        begun, self._what = what != self._what, what
        if not sys.stderr.isatty():
            if begun and self._lines:
                print(f"{printable(what)} …", file=sys.stderr, flush=True)
            return
        now = time.monotonic()
        if begun or now - self._shown > BAR_EVERY_S:
            self._shown = now
            filled = round(BAR_WIDTH * done)
            bar = f"{'#' * filled}{' ' * (BAR_WIDTH - filled)}"
            print_control(f"{CLEAR_LINE}{printable(what)} [{bar}] {done:4.0%}")

    def end(self) -> None:
        """Take the bar away."""
        self._what = ""
        if sys.stderr.isatty():
            print_control(CLEAR_LINE)
