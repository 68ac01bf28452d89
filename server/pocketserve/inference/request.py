"""One call on its way through the engine: what it holds meanwhile, and how its end is counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.entries import Job, QueueEntry
from pocketserve.engine.statistics import Timing, VersionStatistics
from pocketserve.inference.call import Call, Done, Prediction, RawPayload
from pocketserve.inference.operations import Operation, TensorOperation, prepare
from pocketserve.runtimes.base import Session
from pocketserve_wire import ApiError

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence
    from pocketserve.tasks.cancellation import BytePool

log = logging.getLogger(__name__)


class InferenceRequest(QueueEntry):
    """A call from its admission to its end, which is counted once.

    Attributes:
        handle: the version that is held for it.
        release: gives back what the service holds for it; None where that is nothing.
    """

    __slots__ = ("_call", "_done", "_operation", "_sequence", "_started_ns", "_statistics", "handle", "release")

    def __init__(self, call: Call, done: Done, statistics: VersionStatistics) -> None:
        # Labelling an answer, or drawing it, takes too long for the next request to wait for it.
        keeps_thread = call.keeps_thread and not isinstance(call.payload, RawPayload)
        assert call.execute is not None
        super().__init__(call.options, call.execute, keeps_thread=keeps_thread)
        self._started_ns = self.submitted_ns
        self._call = call
        self._done = done
        self._statistics = statistics
        self._operation: Operation | None = None
        self._sequence: Sequence | None = None
        self.handle: ModelHandle | None = None
        self.release: Callable[[InferenceRequest], None] | None = None

    def start(self, handle: ModelHandle, budget: BytePool) -> Job | None:
        """Prepare the run on a version that is held for it, and submit it to the version's queue.

        Args:
            budget: what decoding takes its memory from.

        Returns:
            As :meth:`~pocketserve.engine.scheduling.queue.ModelQueue.submit`.
        """
        self.handle = handle
        try:
            operation = self._operation = prepare(handle, self._call.payload, self._call.options, budget)
            self.arrays, self.signature = operation.arrays, operation.signature
            queue = handle.queue
            if isinstance(operation, TensorOperation) and operation.step is not None and handle.sequences is not None:
                operation.sequence = self._sequence = handle.sequences.enter(operation.step, self)
                queue = self._sequence.queue or queue
        except BaseException as error:
            self.fail(error)
            return None
        return queue.submit(self)

    def run(self, session: Session) -> Any:
        """Run the model."""
        assert self._operation is not None
        return self._operation.run(session)

    def end(self, result: Any) -> None:
        """Answer with the result of the run."""
        operation, ended_ns = self._operation, time.perf_counter_ns()
        assert operation is not None
        try:
            outcome = operation.respond(result)
        except BaseException as error:
            return self.fail(error)
        timing = Timing(
            self.queue_ns,
            self.submitted_ns - self._started_ns,
            self.run_ns,
            time.perf_counter_ns() - ended_ns,
            operation.rows,
            self.executions if operation.executions is None else operation.executions,
            self.batch_rows,
        )
        self._let_go(failed=False)
        self._statistics.record_success(timing)
        if isinstance(outcome, Prediction):
            outcome.timing = timing
        self._finish(outcome)
        return None

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        self._let_go(failed=self.session is not None)
        code = error.code if isinstance(error, ApiError) else None
        self._statistics.record_failure(time.perf_counter_ns() - self._started_ns, code)
        if self._call.explain is not None and isinstance(error, ApiError):
            error = self._call.explain(error)
        self._finish(error)

    def _finish(self, outcome: Any) -> None:
        try:
            self._done(outcome)
        except Exception:
            log.exception("unexpected error while answering a request")

    def _let_go(self, *, failed: bool) -> None:
        operation = self._operation
        if self._sequence is not None and isinstance(operation, TensorOperation) and operation.step is not None:
            assert self.handle is not None and self.handle.sequences is not None
            self.handle.sequences.leave(operation.step, self._sequence, self, failed=failed)
        if self.release is not None:
            self.release(self)
