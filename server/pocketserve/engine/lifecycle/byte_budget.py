"""A budget of bytes for what requests prepare: pictures while they are decoded, JSON while it is read.

Each request alone is within its limits; many at a time are not, and a phone ends the process that takes too much.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pocketserve.engine.lifecycle import memory

CHECK_S = 0.05  # how often a request that waits asks whether its answer is still wanted


class ByteBudget:
    """A number of bytes that requests share; who finds no room waits, first come, first served.

    Once the last large holder is gone, memory that was freed goes back to the system.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._reserved = 0
        self._large = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def reserved(self) -> int:
        """Return bytes that are held now."""
        return self._reserved

    def acquire(self, count: int, check: Callable[[], None]) -> int:
        """Take bytes, and return how many; a request that alone exceeds the budget takes all of it.

        ``check`` is called before each wait, and raises once nobody wants the answer.
        """
        count = min(count, self.size)
        large = count >= memory.LARGE_BYTES
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while self._waiting[0] is not ticket or self._reserved + count > self.size:
                    check()
                    self._changed.wait(CHECK_S)
                self._reserved += count
                self._large += large
                first = large and self._large == 1
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()  # the next one may fit beside this one
        try:
            if first:
                memory.trim_on_free()
        except BaseException:
            self.release(count)
            raise
        return count

    def release(self, count: int) -> None:
        """Give back what :meth:`acquire` returned."""
        large = count >= memory.LARGE_BYTES
        with self._changed:
            self._reserved -= count
            self._large -= large
            last = large and self._large == 0
            self._changed.notify_all()
        if last:
            memory.trim()
