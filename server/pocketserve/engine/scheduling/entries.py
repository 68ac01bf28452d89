"""A request in a model's queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.policy import Entry
from pocketserve.runtimes.base import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pocketserve.engine.scheduling.queue import ModelQueue

Job = Callable[[], Any]
"""Work for a thread. It returns the same thread's next job, or None."""

Execute = Callable[[Job], None]
"""Have another thread run a job soon, and all jobs that it returns, without waiting.

Raises RuntimeError when the system has no thread."""


class QueueEntry(Entry):
    """A request, from submission to its end.

    It ends once.

    Args:
        execute: called with :meth:`begin` when the request may run and no thread of its own submits it.
        keeps_thread: the thread that ran this entry may also run the next one.

    Attributes:
        arrays: its inputs by the session's names; None for a request that must run alone.
        signature: the entry point of these.
        session: is set when it may run.
        batch_members: who runs with it; None as long as it has not waited.
        submitted_ns, queue_ns, run_ns: when it was submitted, how long it waited, and how long its run took.
        executions: runs of the model on its account; those of a batch count for the request that leads it.
        batch_rows: rows of the batch that it led; 0 for one that was led; None for one that ran alone.
        prepare_ns: the part of its run that prepared the input.
    """

    __slots__ = (
        "arrays",
        "batch_members",
        "batch_rows",
        "execute",
        "executions",
        "keeps_thread",
        "prepare_ns",
        "queue",
        "queue_ns",
        "run_ns",
        "session",
        "signature",
        "submitted_ns",
    )

    queue: ModelQueue
    arrays: Mapping[str, Any] | None
    signature: str | None
    submitted_ns: int
    queue_ns: int
    run_ns: int

    def __init__(
        self,
        options: RequestOptions,
        execute: Execute | None,
        keeps_thread: bool = False,
    ) -> None:
        # Not super().__init__(): one is made for every request.
        self.options = options
        self.steps = None
        self.execute: Any = execute
        self.keeps_thread = keeps_thread
        self.session: Session | None = None
        self.batch_members: Sequence[QueueEntry] | None = None
        self.executions = 1
        self.batch_rows: int | None = None
        self.prepare_ns = 0

    def begin(self) -> Job | None:
        """Run it on its session; a :data:`Job`."""
        return self.queue.run(self)

    def work(self, session: Session) -> Any:
        """Run the model for this request alone."""
        raise NotImplementedError

    def end(self, outcome: Any) -> None:
        """Handle the result, or the exception in its place.

        It must not raise.
        """
        raise NotImplementedError
