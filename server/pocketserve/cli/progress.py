"""Progress of a long command: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from pocketserve.cli.output import print_control, printable

CLEAR_LINE = "\r\033[K"
BAR_WIDTH = 30
BAR_EVERY_S = 0.1


class Progress:
    """Writes to standard error; without a terminal, a line for each new title if ``lines`` is set."""

    def __init__(self, *, lines: bool = False) -> None:
        self._lines = lines
        self._drawn_at = 0.0
        self._title = ""

    def show(self, title: str, share: float) -> None:
        """Show which share of the work is over, 0 to 1. Calling it often costs little."""
        is_new, self._title = title != self._title, title
        if not sys.stderr.isatty():
            if is_new and self._lines:
                print(f"{printable(title)} …", file=sys.stderr, flush=True)
            return
        now = time.monotonic()
        if is_new or now - self._drawn_at > BAR_EVERY_S:
            self._drawn_at = now
            bar = ("#" * round(BAR_WIDTH * share)).ljust(BAR_WIDTH)
            print_control(f"{CLEAR_LINE}{printable(title)} [{bar}] {share:4.0%}")

    def end(self) -> None:
        """Remove the bar."""
        self._title = ""
        if sys.stderr.isatty():
            print_control(CLEAR_LINE)
