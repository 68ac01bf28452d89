"""A lane: the sessions of one loaded version and the requests that wait for them.

A request that finds a session idle runs at once on the thread that brought it: nothing is handed over. Otherwise it
waits in a bounded line, in order of arrival, until a session is handed to it or its deadline passes. A session is
never used by two threads at once: TFLite interpreters give silently wrong answers when it happens.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pocketserve.runtimes.base import Session
from pocketserve_wire import ApiError, ErrorCode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn(Generic[T]):
    """What a request got from its lane: the result, and how long it waited and ran, in nanoseconds."""

    result: T
    queue_ns: int
    run_ns: int


class _Waiter:
    __slots__ = ("given", "session")

    def __init__(self) -> None:
        # A locked lock is the cheapest thing one thread can wait on and another release.
        self.given = threading.Lock()
        self.given.acquire()
        self.session: Session | None = None


class Lane:
    """The line in front of one version's sessions.

    Args:
        sessions: the instances; at least one.
        queue_limit: requests that may wait; the next is refused.
        clock: seconds, monotonic.
    """

    def __init__(
        self, sessions: Sequence[Session], queue_limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._idle: deque[Session] = deque(sessions)
        self._waiting: deque[_Waiter] = deque()
        self._queue_limit = queue_limit
        self._clock = clock
        self._lock = threading.Lock()
        self._recent_run_s = 0.0

    @property
    def waiting(self) -> int:
        """Requests in line now."""
        return len(self._waiting)

    def run(self, work: Callable[[Session], T], deadline: float) -> Turn[T]:
        """Run ``work`` on a session once it is this request's turn.

        Args:
            deadline: the clock's time after which the work is not started any more.

        Raises:
            ApiError: QUEUE_FULL at once when the line is full; DEADLINE_EXCEEDED when the turn came too late.
        """
        arrived = time.perf_counter_ns()
        session = self._enter(deadline)
        started = time.perf_counter_ns()
        try:
            result = work(session)
        finally:
            ended = time.perf_counter_ns()
            self._leave(session, (ended - started) / 1e9)
        return Turn(result, started - arrived, ended - started)

    def _enter(self, deadline: float) -> Session:
        if self._clock() >= deadline:
            raise _expired()
        with self._lock:
            if self._idle:
                return self._idle.popleft()
            if len(self._waiting) >= self._queue_limit:
                raise self._full()
            waiter = _Waiter()
            self._waiting.append(waiter)
        return self._await_turn(waiter, deadline)

    def _await_turn(self, waiter: _Waiter, deadline: float) -> Session:
        if not waiter.given.acquire(timeout=max(0.0, deadline - self._clock())):
            with self._lock:
                if waiter.session is None:
                    self._waiting.remove(waiter)
                    raise _expired()
        # The turn may have come while the wait was timing out; then it is taken.
        assert waiter.session is not None
        return waiter.session

    def _leave(self, session: Session, run_s: float) -> None:
        with self._lock:
            self._recent_run_s += 0.2 * (run_s - self._recent_run_s)
            if self._waiting:
                waiter = self._waiting.popleft()
                waiter.session = session
                waiter.given.release()
            else:
                self._idle.append(session)

    def _full(self) -> ApiError:
        wait_s = self._recent_run_s * (len(self._waiting) + 1)
        return ApiError(
            ErrorCode.QUEUE_FULL,
            f"the queue of this model is full ({self._queue_limit} requests wait); try again later",
            retry_after_s=max(0.1, wait_s),
        )


def _expired() -> ApiError:
    return ApiError(ErrorCode.DEADLINE_EXCEEDED, "the request's timeout passed before the model could start on it")
