"""Those who wait in a line: requests whose thread waits with them, and queued requests, which wait without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.policy import Entry
from pocketserve.runtimes.base import Session

T = TypeVar("T")

Described = tuple[Any, int, int]
"""What of a request matters to a batch: key (None: it runs alone), rows and bytes."""

ALONE: Described = (None, 1, 0)


class RunResult(Generic[T]):
    """What a request got from its lane.

    Attributes:
        result: what its work returned.
        queue_ns, run_ns: how long it waited, and how long the run took that it was part of.
        executions: runs of the model on its account; those of a batch count for the request that led it.
        batch_rows: rows of the batch that it led; 0 for one that was led; None for one that ran alone.
    """

    __slots__ = ("batch_rows", "executions", "queue_ns", "result", "run_ns")

    def __init__(
        self, result: T, queue_ns: int, run_ns: int, executions: int = 1, batch_rows: int | None = None
    ) -> None:
        self.result = result
        self.queue_ns = queue_ns
        self.run_ns = run_ns
        self.executions = executions
        self.batch_rows = batch_rows


class QueueEntry(Entry):
    """A request in line, and what becomes of it: a session, another's turn, or an error.

    Attributes:
        session: it is to be run on this one, together with ``batch_members``.
        turn: what the run gave it that another led.
        error: why it was not run, or what the run of another raised for it.
    """

    __slots__ = ("batch_members", "error", "session", "turn", "work")

    def __init__(self, work: Callable[[Session], Any], terms: RequestOptions, described: Described) -> None:
        key, rows, size = described
        super().__init__(
            terms.deadline,
            arrived=terms.arrived,
            rank=terms.rank,
            stream=terms.stream,
            key=key,
            rows=rows,
            size=size,
        )
        self.work = work
        self.session: Session | None = None
        self.batch_members: list[QueueEntry] = []
        self.turn: RunResult[Any] | None = None
        self.error: BaseException | None = None

    def call(self) -> None:
        """What becomes of it is known. Called once, by whichever thread decided it, and never under a lock of ours."""
        raise NotImplementedError


class BlockingEntry(QueueEntry):
    """A request whose thread waits for :attr:`given`."""

    __slots__ = ("given",)

    def __init__(self, work: Callable[[Session], Any], terms: RequestOptions, described: Described) -> None:
        super().__init__(work, terms, described)
        # A locked lock is the cheapest thing one thread can wait on and another release.
        self.given = threading.Lock()
        self.given.acquire()

    def call(self) -> None:
        """Wake its thread."""
        self.given.release()


class CallbackEntry(QueueEntry):
    """A request that no thread waits with: the thread that has ended a run carries out the next one, too.

    Args:
        begin: has some thread carry it out, soon, see :meth:`ModelQueue.run_entry`; it must neither wait nor raise.

    Attributes:
        followers: what the thread that carried this one out has to carry out behind it.
    """

    __slots__ = ("_begin", "arrived_ns", "cancellation", "followers")

    def __init__(
        self,
        work: Callable[[Session], Any],
        terms: RequestOptions,
        described: Described,
        begin: Callable[[Any], None],
    ) -> None:
        super().__init__(work, terms, described)
        self._begin = begin
        self.arrived_ns = time.perf_counter_ns()
        self.cancellation = terms.cancellation
        self.followers: list[Any] = []

    def call(self) -> None:
        """Have it carried out."""
        self._begin(self)
