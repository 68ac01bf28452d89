"""A request to a model, from the protocol that decoded it to its end, which is counted once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.entries import Execute, Job, QueueEntry
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.statistics import Timing, VersionStatistics
from pocketserve.inference.operations import prepare_operation
from pocketserve.inference.payload import EncodedPayload, Payload
from pocketserve.runtimes.base import Session
from pocketserve_wire import ApiError

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence
    from pocketserve.tasks.cancellation import BytePool

Done = Callable[[Any], None]
"""Take how a call ended: the result, or the exception in its place. It is called once, on any thread; never raises."""


class InferenceCall(QueueEntry):
    """A request for a model; every transport and every protocol hands one to :meth:`Service.submit`.

    Args:
        version: None is the model's default.
        options: deadline, priority, stream and cancellation.
        execute: has a thread of the transport run a job; set before the call is submitted.
        respond: makes what the transport sends from the result; None where the caller takes the result itself.
        explain: adds to an error of the model's task what this protocol knows of the request.
        keeps_thread: see :class:`~pocketserve.engine.scheduling.entries.QueueEntry`.

    Attributes:
        done, statistics: take how it ends; set when it is submitted.
        release: gives back what the service holds for it; None as long as it holds nothing.
        handle: the version that is held for it.
        started_ns: when the work on it began.
    """

    __slots__ = (
        "_explain", "_operation", "_sequence", "done", "handle", "model", "payload",
        "release", "respond", "started_ns", "statistics", "version"
    )  # fmt: skip

    done: Done
    statistics: VersionStatistics
    _operation: Any

    def __init__(
        self,
        model: str,
        version: str | None,
        payload: Payload,
        options: RequestOptions,
        execute: Execute | None = None,
        respond: Callable[[Any], Any] | None = None,
        explain: Callable[[ApiError], ApiError] | None = None,
        keeps_thread: bool = False,
    ) -> None:
        # To label, draw or write an answer as JSON takes too long for the next request to wait for it.
        QueueEntry.__init__(
            self, options, execute, keeps_thread and type(payload) is EncodedPayload
        )
        self.model = model
        self.version = version
        self.payload = payload
        self.respond = respond
        self._explain = explain
        self.started_ns = time.perf_counter_ns()
        self._sequence: Sequence | None = None
        self.handle: ModelHandle | None = None
        self.release: Callable[[InferenceCall], None] | None = None

    def start(self, handle: ModelHandle, budget: BytePool) -> Job | None:
        """Prepare the run on a version that is held for it, and submit it to the version's queue.

        Args:
            budget: what decoding takes its memory from.

        Returns:
            As :meth:`~pocketserve.engine.scheduling.queue.ModelQueue.submit`.
        """
        self.handle = handle
        try:
            operation, self.arrays = prepare_operation(
                handle, self.payload, self.options, budget
            )
            self._operation, self.signature = operation, operation.signature
            if operation.step is not None and handle.sequences is not None:
                self._sequence = handle.sequences.enter(operation.step, self)
                operation.sequence = self._sequence
                if handle.sequences.has_sessions:
                    return self._submit_step  # which may have to open a session
        except BaseException as error:
            self.end(error)
            return None
        return handle.queue.submit(self)

    def _submit_step(self) -> Job | None:
        """Submit a step to the queue of its sequence's own session."""
        assert (
            self.handle is not None
            and self.handle.sequences is not None
            and self._sequence is not None
        )
        try:
            queue = self.handle.sequences.queue_of(self._sequence)
        except BaseException as error:
            self.end(error)
            return None
        return queue.submit(self)

    @property
    def prepare_ns(self) -> int:
        """Return how much of its run decoded the input."""
        prepare_ns: int = self._operation.prepare_ns
        return prepare_ns

    def work(self, session: Session) -> Any:
        """Run the model."""
        return self._operation.run(session, self.arrays)

    def end(self, outcome: Any) -> None:
        """Answer with the result of the run, or with the error in its place."""
        if isinstance(outcome, BaseException):
            self._fail(outcome, failed=self.session is not None)
            return
        operation, ended_ns = self._operation, time.perf_counter_ns()
        try:
            result = operation.respond(outcome)
        except BaseException as error:
            self._fail(error, failed=False)  # the run itself was good
            return
        timing = (
            self.queue_ns,
            self.submitted_ns - self.started_ns + operation.prepare_ns,
            self.run_ns - operation.prepare_ns,
            time.perf_counter_ns() - ended_ns,
            operation.rows,
            operation.executions or self.executions,
            self.batch_rows,
        )
        self._give_back(failed=False)
        self.statistics.record_success(timing)
        if operation.timed:
            result.timing = Timing(*timing)
        self.done(result)

    def _fail(self, error: BaseException, *, failed: bool) -> None:
        self._give_back(failed=failed)
        code = error.code if isinstance(error, ApiError) else None
        self.statistics.record_failure(time.perf_counter_ns() - self.started_ns, code)
        if self._explain is not None and isinstance(error, ApiError):
            error = self._explain(error)
        self.done(error)

    def _give_back(self, *, failed: bool) -> None:
        if self._sequence is not None:
            assert self.handle is not None and self.handle.sequences is not None
            self.handle.sequences.leave(
                self._operation.step, self._sequence, self, failed=failed
            )
        if self.release is not None:
            self.release(self)
