"""Clean termination of commands by signals."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_WISH_S: Final = 2.0  # a signal that comes sooner says nothing new, and must not interrupt the tidying


class _Postponed:
    """The state of :func:`uninterrupted`."""

    active = False
    pending = False


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay termination by a signal until the block ends.

    For blocks that create a process or folder and register it.

    Signals are heard on the main thread only: on others the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Postponed.active = True
    try:
        yield
    finally:
        _Postponed.active = False
        if _Postponed.pending:
            _Postponed.pending = False
            raise KeyboardInterrupt


@contextlib.contextmanager
def tidy_end() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, as on Ctrl-C.

    So all blocks clean up.

    SIGTERM alone would leave temporary folders, with tokens in them, and child processes behind. What is ignored
    already, as under ``nohup``, stays ignored.
    """
    heeded = -SAME_WISH_S

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal heeded
        if time.monotonic() - heeded >= SAME_WISH_S:
            heeded = time.monotonic()
            if not _Postponed.active:
                raise KeyboardInterrupt
            _Postponed.pending = True

    previous = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number, handler in previous.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, end)
    except ValueError:  # not on the main thread, which alone receives signals
        previous = {}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
