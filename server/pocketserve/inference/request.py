"""A call in the engine: what it holds until its end, and how that is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.entries import Job, QueueEntry
from pocketserve.engine.statistics import Timing, VersionStatistics
from pocketserve.inference.call import Done, EncodedPayload, InferenceCall
from pocketserve.inference.operations import prepare_operation
from pocketserve_wire import ApiError

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence
    from pocketserve.tasks.cancellation import BytePool


class InferenceRequest(QueueEntry):
    """A call from its admission to its end, which is counted once.

    Attributes:
        handle: the version that is held for it.
        release: gives back what the service holds for it.
    """

    handle: ModelHandle | None = None
    _operation: Any = None
    _sequence: Sequence | None = None

    def __init__(self, call: InferenceCall, done: Done, statistics: VersionStatistics) -> None:
        # To label, draw or write an answer as JSON takes too long for the next request to wait for it.
        super().__init__(call.options, call.execute, call.keeps_thread and type(call.payload) is EncodedPayload)
        self._started_ns = self.submitted_ns
        self._call = call
        self._done = done
        self._statistics = statistics
        self.release: Callable[[InferenceRequest], None] = _hold_nothing

    def start(self, handle: ModelHandle, budget: BytePool) -> Job | None:
        """Prepare the run on a version that is held for it, and submit it to the version's queue.

        Args:
            budget: what decoding takes its memory from.

        Returns:
            As :meth:`~pocketserve.engine.scheduling.queue.ModelQueue.submit`.
        """
        self.handle = handle
        self._started_ns = time.perf_counter_ns()  # to load the model is not the request's work
        try:
            operation = self._operation = prepare_operation(handle, self._call.payload, self._call.options, budget)
            self.work, self.arrays, self.signature = operation.run, operation.arrays, operation.signature
            if operation.step is not None and handle.sequences is not None:
                self._sequence = handle.sequences.enter(operation.step, self)
                operation.sequence = self._sequence
                if handle.sequences.has_sessions:
                    return self._submit_step  # which may have to open a session
        except BaseException as error:
            self.fail(error)
            return None
        return handle.queue.submit(self)

    def _submit_step(self) -> Job | None:
        """Submit a step to the queue of its sequence's own session."""
        assert self.handle is not None and self.handle.sequences is not None and self._sequence is not None
        try:
            queue = self.handle.sequences.queue_of(self._sequence)
        except BaseException as error:
            self.fail(error)
            return None
        return queue.submit(self)

    def end(self, result: Any) -> None:
        """Answer with the result of the run."""
        operation, ended_ns = self._operation, time.perf_counter_ns()
        try:
            outcome = operation.respond(result)
        except BaseException as error:
            self._fail(error, failed=False)  # the run itself was good
            return
        timing = Timing(
            self.queue_ns,
            self.submitted_ns - self._started_ns,
            self.run_ns,
            time.perf_counter_ns() - ended_ns,
            operation.rows,
            operation.executions or self.executions,
            self.batch_rows,
        )
        if self._sequence is not None:
            self._leave_sequence(self._sequence, failed=False)
        self.release(self)
        self._statistics.record_success(timing)
        if operation.timed:
            outcome.timing = timing
        self._done(outcome)

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        self._fail(error, failed=self.session is not None)

    def _fail(self, error: BaseException, *, failed: bool) -> None:
        if self._sequence is not None:
            self._leave_sequence(self._sequence, failed=failed)
        self.release(self)
        code = error.code if isinstance(error, ApiError) else None
        self._statistics.record_failure(time.perf_counter_ns() - self._started_ns, code)
        if self._call.explain is not None and isinstance(error, ApiError):
            error = self._call.explain(error)
        self._done(error)

    def _leave_sequence(self, sequence: Sequence, *, failed: bool) -> None:
        assert self.handle is not None and self.handle.sequences is not None
        self.handle.sequences.leave(self._operation.step, sequence, self, failed=failed)


def _hold_nothing(request: InferenceRequest) -> None:
    pass
