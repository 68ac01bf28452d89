"""Progress of a long command: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from pocketserve.terminal.output import print_control, printable, terminal_columns

CLEAR_LINE = "\r\033[K"
BAR_WIDTH, LEAST_BAR = 30, 5
BAR_EVERY_S = 0.1
SECOND_S = 1.0


class Progress:
    """Writes to standard error; without a terminal, a line for each new title if ``lines`` is set."""

    def __init__(self, *, lines: bool = False) -> None:
        self._lines = lines
        self._drawn_at = 0.0
        self._title = ""

    def show(self, title: str, share: float) -> None:
        """Show which share of the work is over, 0 to 1. Calling it often costs little."""
        is_new, self._title = title != self._title, title
        if not _on_terminal():
            if is_new and self._lines:
                print(f"{printable(title)} …", file=sys.stderr, flush=True)
            return
        now = time.monotonic()
        if is_new or now - self._drawn_at > BAR_EVERY_S:
            self._drawn_at = now
            _draw(title, share)

    @contextlib.contextmanager
    def waiting(self, title: str, share: float | None = None) -> Iterator[None]:
        """Show on a terminal for how long the block runs, each second, after the first."""
        over = threading.Event()

        def tick() -> None:
            began = time.monotonic()
            while not over.wait(SECOND_S):
                _draw(f"{time.monotonic() - began:.0f} s, {title}", share)

        thread = (
            threading.Thread(target=tick, name="pocketserve-progress", daemon=True)
            if _on_terminal()
            else None
        )
        try:
            if thread is not None:
                thread.start()
            yield
        finally:
            over.set()
            if thread is not None:
                thread.join()
                self.end()

    def end(self) -> None:
        """Remove the bar."""
        self._title = ""
        if _on_terminal():
            print_control(CLEAR_LINE)


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _draw(title: str, share: float | None) -> None:
    """Draw one line that no terminal breaks; the bar is left out where there is no room for it."""
    end = "" if share is None else f" {share:4.0%}"
    columns = (
        terminal_columns(sys.stderr.fileno()) - len(end) - 1
    )  # a letter in the last column may break the line
    title = _fit(printable(title), columns)
    room = min(BAR_WIDTH, columns - len(title) - len(" []"))
    bar = (
        ""
        if share is None or room < LEAST_BAR
        else f" [{('#' * round(room * share)).ljust(room)}]"
    )
    print_control(f"{CLEAR_LINE}{title}{bar}{end}")


def _fit(title: str, columns: int) -> str:
    """Shorten a title such as "3 s, waiting for NAME, which may be loading"."""
    if len(title) > columns and title.count(", ") > 1:
        title = title.rpartition(", ")[0]
    if len(title) <= columns:
        return title
    return title[: max(0, columns - len("..."))] + "..."
