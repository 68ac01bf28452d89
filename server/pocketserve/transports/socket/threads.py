"""Threads that read connections and run requests.

They start on demand and end when idle.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pocketserve.engine.scheduling.entries import Job

log = logging.getLogger(__name__)

IDLE_S: Final = 10.0
"""Seconds that a thread waits for more work before it ends and gives its memory back."""


class _Parked:
    __slots__ = ("job", "wake")

    def __init__(self, job: Job | None = None) -> None:
        self.job = job
        # A locked lock is the cheapest thing one thread can wait on and another release.
        self.wake = threading.Lock()
        self.wake.acquire()


class Workers:
    """A thread pool that grows on demand and shrinks to nothing.

    Args:
        maximum: threads at a time; further jobs wait.
    """

    def __init__(self, maximum: int, idle_s: float = IDLE_S) -> None:
        self._maximum = maximum
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

    def execute(self, job: Job) -> None:
        """Run a job on some thread soon, and the jobs it returns.

        Exceptions are logged.
        """
        with self._lock:
            if self._parked:
                parked = self._parked.pop()  # the last to come is the warmest
                parked.job = job
            else:
                parked = None
                if self._count >= self._maximum:
                    self._queue.append(job)
                    return
                self._count += 1
        if parked is not None:
            parked.wake.release()
        else:
            self._start(job)

    def _start(self, job: Job) -> None:
        try:
            threading.Thread(
                target=self._work,
                args=(_Parked(job),),
                name="pocketserve-socket",
                daemon=True,
            ).start()
        except RuntimeError:  # the system has no more threads; one of ours has to do
            with self._lock:
                self._count -= 1
                if not self._count:
                    raise
                if not self._parked:
                    self._queue.append(job)
                    return
                parked = self._parked.pop()
                parked.job = job
            parked.wake.release()

    def _work(self, parked: _Parked) -> None:
        # Not an argument, as the thread would keep it until its end.
        job, parked.job = (
            parked.job,
            None,
        )
        while job is not None:
            try:
                while job is not None:
                    job = job()
            except Exception:
                log.exception("unexpected error on a thread of the socket transport")
            job = None  # free its memory before the wait
            job = self._next(parked)

    def _next(self, parked: _Parked) -> Job | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            parked.job = None
            self._parked.append(parked)
        if not parked.wake.acquire(timeout=self._idle_s):
            with self._lock:
                if parked.job is None:
                    self._parked.remove(parked)
                    self._count -= 1
                    return None
            parked.wake.acquire()  # the job came while the wait was ending; so did, or will, its release
        job, parked.job = parked.job, None
        return job


class FrameBudget:
    """A number of bytes, taken without waiting."""

    def __init__(self, maximum: int) -> None:
        self._free = maximum
        self._lock = threading.Lock()

    def acquire(self, count: int) -> bool:
        """Take bytes; return whether so many are free."""
        with self._lock:
            if self._free < count:
                return False
            self._free -= count
        return True

    def release(self, count: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._free += count
