"""Show the progress of a long command: a bar on a terminal, else lines."""

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
    """Shows progress on standard error.

    Without a terminal, it prints a line for each new title if ``lines`` is set.
    """

    def __init__(self, *, lines: bool = False) -> None:
        self._lines = lines
        self._drawn_at = 0.0
        self._title = ""

    def show(self, title: str, share: float) -> None:
        """Show the finished share, 0 to 1; cheap to call often."""
        is_new = title != self._title
        self._title = title
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
        """Show the elapsed seconds on a terminal while the block runs."""
        if not _on_terminal():
            yield
            return
        over = threading.Event()

        def tick() -> None:
            began = time.monotonic()
            while not over.wait(SECOND_S):
                _draw(f"{time.monotonic() - began:.0f} s, {title}", share)

        thread = threading.Thread(target=tick, name="pocketserve-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
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
    """Draw a line that fits the terminal, if possible with a bar."""
    end = "" if share is None else f" {share:4.0%}"
    # One column less: a character in the last one may wrap the line.
    columns = terminal_columns(sys.stderr.fileno()) - len(end) - 1
    title = _fit(printable(title), columns)
    room = min(BAR_WIDTH, columns - len(title) - len(" []"))
    bar = ""
    if share is not None and room >= LEAST_BAR:
        filled = "#" * round(room * share)
        bar = f" [{filled.ljust(room)}]"
    print_control(f"{CLEAR_LINE}{title}{bar}{end}")


def _fit(title: str, columns: int) -> str:
    """Shorten a title such as "3 s, waiting for NAME, which may be loading"."""
    if len(title) > columns and title.count(", ") > 1:
        title = title.rpartition(", ")[0]
    if len(title) <= columns:
        return title
    return title[: max(0, columns - len("..."))] + "..."
