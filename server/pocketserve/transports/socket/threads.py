"""Threads that read connections and run requests: started when needed, ended when idle."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

IDLE_S: Final = 10.0
"""How long a thread waits for more work before it ends and gives its memory back."""

Job = Callable[[], None]


class _Parked:
    __slots__ = ("job", "wake")

    def __init__(self) -> None:
        self.job: Job | None = None
        # A locked lock is the cheapest thing one thread can wait on and another release.
        self.wake = threading.Lock()
        self.wake.acquire()


class Workers:
    """A pool of threads that grows with the work and shrinks to nothing without.

    Args:
        maximum: threads at a time; further jobs wait.
    """

    def __init__(self, maximum: int, idle_s: float = IDLE_S) -> None:
        self._most = maximum
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._parked: list[_Parked] = []
        self._queue: deque[Job] = deque()
        self._count = 0

    @property
    def count(self) -> int:
        """Threads now."""
        return self._count

    @property
    def busy(self) -> int:
        """Threads that are at work."""
        with self._lock:
            return self._count - len(self._parked)

    def submit(self, job: Job, *, waits: bool = True) -> bool:
        """Run ``job`` on some thread, soon. It must not raise.

        Args:
            waits: for a thread that is at work, where none is free and none can be started.

        Returns:
            Whether it is run; only what does not wait may not be.
        """
        with self._lock:
            if not self._parked:
                if self._count >= self._most:
                    if waits:
                        self._queue.append(job)
                    return waits
                self._count += 1
                parked = None
            else:
                parked = self._parked.pop()  # the last to come is the warmest
                parked.job = job
        if parked is not None:
            parked.wake.release()
            return True
        return self._start(job, waits)

    def _start(self, job: Job, waits: bool) -> bool:
        place = _Parked()
        place.job = job
        try:
            threading.Thread(target=self._work, args=(place,), name="pocketserve-socket", daemon=True).start()
        except RuntimeError:  # the system has no more threads; one of ours will find the job
            with self._lock:
                self._count -= 1
                if not waits:
                    return False
                if not self._count:
                    raise
                self._queue.append(job)
        return True

    def _work(self, place: _Parked) -> None:
        job, place.job = place.job, None  # not an argument: the thread would keep that until it ends
        while job is not None:
            try:
                job()
            except Exception:
                log.exception("unexpected error on a thread of the socket transport")
            job = None  # what it holds must not live as long as the wait
            job = self._next(place)

    def _next(self, place: _Parked) -> Job | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            place.job = None
            self._parked.append(place)
        if not place.wake.acquire(timeout=self._idle_s):
            with self._lock:
                if place.job is None:
                    self._parked.remove(place)
                    self._count -= 1
                    return None
            place.wake.acquire()  # the job came while the wait was ending; so did, or will, its release
        job, place.job = place.job, None
        return job


class FrameBudget:
    """A number of bytes, taken without waiting."""

    def __init__(self, maximum: int) -> None:
        self._free = maximum
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Take so many, if they are free."""
        with self._lock:
            if self._free < count:
                return False
            self._free -= count
        return True

    def give(self, count: int) -> None:
        """Give them back."""
        with self._lock:
            self._free += count
