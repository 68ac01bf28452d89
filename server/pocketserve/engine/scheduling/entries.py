"""A request in a model's queue: what it runs, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.policy import Entry
from pocketserve.runtimes.base import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pocketserve.engine.scheduling.queue import ModelQueue

Job = Callable[[], Any]
"""Work for a thread. It returns the job that the same thread is to run next, or None."""

Execute = Callable[[Job], None]
"""Have another thread run a job soon, and all jobs that it returns, without waiting.

Raises RuntimeError when the system has no thread."""


class QueueEntry(Entry):
    """One request, from its submission to a :class:`ModelQueue` to its end. It ends once: by ``end`` or by ``fail``.

    Args:
        execute: called with :meth:`begin` when the request may run and no thread of its own submits it.
        keeps_thread: the thread that ran it may run the next entry after it, of whichever request.

    Attributes:
        arrays: its inputs by the session's names; None for a request that must run alone.
        signature: the entry point of these.
        session: is set when it may run, together with ``batch_members``.
        submitted_ns, queue_ns, run_ns: when it was submitted, how long it waited, and how long its run took.
        executions: runs of the model on its account; those of a batch count for the request that leads it.
        batch_rows: rows of the batch that it led; 0 for one that was led; None for one that ran alone.
    """

    __slots__ = (
        "arrays", "batch_members", "batch_rows", "cancellation", "execute", "executions", "keeps_thread", "queue",
        "queue_ns", "run_ns", "session", "signature", "submitted_ns",
    )  # fmt: skip

    queue: ModelQueue

    def __init__(self, options: RequestOptions, execute: Execute, *, keeps_thread: bool = False) -> None:
        super().__init__(options.deadline, arrived=options.arrived, rank=options.rank, stream=options.stream)
        self.cancellation = options.cancellation
        self.execute = execute
        self.keeps_thread = keeps_thread
        self.arrays: Mapping[str, Any] | None = None
        self.signature: str | None = None
        self.session: Session | None = None
        self.batch_members: list[QueueEntry] = []
        self.submitted_ns = time.perf_counter_ns()
        self.queue_ns = self.run_ns = 0
        self.executions = 1
        self.batch_rows: int | None = None

    def begin(self) -> Job | None:
        """Run it on its session; a :data:`Job`."""
        return self.queue.run(self)

    def run(self, session: Session) -> Any:
        """Run the model alone; return the result."""
        raise NotImplementedError

    def end(self, result: Any) -> None:
        """Take the result of the run. It must not raise."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Take why there is no result: an ApiError, or what the run raised. It must not raise."""
        raise NotImplementedError
