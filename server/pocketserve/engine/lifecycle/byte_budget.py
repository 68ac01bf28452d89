"""A memory budget for decoding pictures and JSON.

Each request alone is within its limits; many at a time are not, and a phone ends the process that takes too much.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pocketserve.engine.lifecycle import memory

CHECK_S = 0.05  # how often a request that waits asks whether its answer is still wanted


class ByteBudget:
    """Bytes shared by requests, first come, first served.

    When a large holder ends, memory that it has freed goes back to the system.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._reserved = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def reserved(self) -> int:
        """Return bytes that are held now."""
        return self._reserved

    def acquire(self, count: int, check: Callable[[], None]) -> int:
        """Acquire bytes; return their number.

        A request larger than the budget takes all of it.

        ``check`` is called before each wait, and raises once nobody wants the answer.
        """
        count = min(count, self.size)
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while (
                    self._waiting[0] is not ticket or self._reserved + count > self.size
                ):
                    check()
                    self._changed.wait(CHECK_S)
                self._reserved += count
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()  # the next one may fit beside this one
        return count

    def release(self, count: int) -> None:
        """Release the bytes that :meth:`acquire` returned."""
        with self._changed:
            self._reserved -= count
            self._changed.notify_all()
        if count >= memory.LARGE_BYTES:
            memory.trim()
