"""A request to a model, from its decoding to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeGuard

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.entries import Execute, Job, QueueEntry
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.statistics import Timing, VersionStatistics
from pocketserve.inference.inputs import ensure_running, step_of
from pocketserve.inference.operations import Operation
from pocketserve.inference.payload import (
    EncodedPayload,
    GenerationPayload,
    Payload,
    RawPayload,
    TensorPayload,
    TranscriptionPayload,
)
from pocketserve.inference.tensor_operation import TensorOperation
from pocketserve.runtimes.base import Session
from pocketserve_wire import ApiError

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence, SequenceStep
    from pocketserve.engine.lifecycle.state import VersionRecord
    from pocketserve.inference.compile import CompiledRequest
    from pocketserve.inference.generation import GenerationOperation
    from pocketserve.inference.task_operation import TaskOperation
    from pocketserve.tasks.cancellation import BytePool

Done = Callable[[Any], None]
"""Called once when a call ends, on any thread, with its result or exception.

It never raises."""


class InferenceCall(QueueEntry):
    """A request for a model. Every protocol passes one to :meth:`Service.submit`.

    Args:
        version: None for the model's default.
        options: deadline, priority, stream and cancellation.
        execute: has a thread of the transport run a job; set before the call is
            submitted.
        respond: converts the result to the transport's response; None to return the
            result itself.
        explain: adds to an error of the model's task what the protocol knows about the
            request.
        keeps_thread: see :class:`~pocketserve.engine.scheduling.entries.QueueEntry`.
        record: the version, from :meth:`Service.open_call`; None if it is still to be
            looked up.

    Attributes:
        done, statistics: set by ``submit``.
        release: releases the service's resources; None while the call has none.
        renew: returns a job that restarts the call on a newer version; None if there is
            none.
        handle: the loaded version that the call uses.
        started_ns: when the work on it began.
    """

    __slots__ = (
        "_explain",
        "_operation",
        "_sequence",
        "done",
        "handle",
        "model",
        "payload",
        "record",
        "release",
        "renew",
        "respond",
        "started_ns",
        "statistics",
        "version",
    )

    done: Done
    statistics: VersionStatistics
    renew: Callable[[InferenceCall], Job | None]
    _operation: Operation

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
        record: VersionRecord | None = None,
    ) -> None:
        # QueueEntry's fields. super().__init__() would cost a call for every request.
        self.options = options
        self.steps = None
        self.execute = execute
        # Only encoded tensor requests are answered quickly enough for this thread to
        # run the next request, too. Others still label, draw or write JSON.
        self.keeps_thread = keeps_thread and type(payload) is EncodedPayload
        self.session = self.batch_members = self.batch_rows = None
        self.executions = 1
        self.prepare_ns = 0

        self.model = model
        self.version = version
        self.payload = payload
        self.respond = respond
        self._explain = explain
        self.record = record
        self.started_ns = time.perf_counter_ns()
        self._sequence: Sequence | None = None
        self.handle: ModelHandle | None = None
        self.release: Callable[[InferenceCall], None] | None = None

    def start(self, handle: ModelHandle, budget: BytePool) -> Job | None:
        """Prepare the run on a loaded version, and submit it to the version's queue.

        Args:
            handle: acquired for this call.
            budget: memory for decoding.

        Returns:
            As :meth:`~pocketserve.engine.scheduling.queue.ModelQueue.submit`.
        """
        self.handle = handle
        try:
            self._prepare(handle, budget)
            renewed = self._restart_sequence()
        except BaseException as error:
            self.end(error)
            return None
        if renewed is not None:
            return renewed
        if self._sequence is not None:
            assert handle.sequences is not None
            if handle.sequences.has_sessions:
                return self._submit_step  # which may have to open a session
        return handle.queue.submit(self)

    def _prepare(self, handle: ModelHandle, budget: BytePool) -> None:
        """Check the request, and enter its sequence."""
        payload = self.payload
        if type(payload) is EncodedPayload:
            compiled: CompiledRequest | None = handle.compiled.get(payload.template)
            if compiled is not None:
                self._operation = compiled
                self.arrays = compiled.arrays(payload.body)
                self.signature = compiled.signature
                return
        operation = prepare_operation(handle, payload, self.options, budget)
        self._operation = operation
        self.arrays = operation.arrays
        self.signature = operation.signature
        if operation.step is not None:
            self._enter_sequence(handle, operation.step)

    def _enter_sequence(self, handle: ModelHandle, step: SequenceStep) -> None:
        if handle.sequences is not None:
            self._sequence = handle.sequences.enter(step, self)
            self._operation.sequence = self._sequence

    def _restart_sequence(self) -> Job | None:
        """Return a job if the call starts a sequence on a version being replaced."""
        if self._sequence is None:
            return None
        step = self._operation.step
        assert step is not None
        if not step.start:
            return None
        return self.renew(self)

    def _submit_step(self) -> Job | None:
        """Submit a step to the queue of its sequence's own session."""
        assert self.handle is not None
        assert self.handle.sequences is not None
        assert self._sequence is not None
        try:
            queue = self.handle.sequences.queue_of(self._sequence)
        except BaseException as error:
            self.end(error)
            return None
        return queue.submit(self)

    def work(self, session: Session) -> Any:
        """Run the model."""
        operation = self._operation
        if hasattr(session, "ensure_running"):
            ensure_running(session.ensure_running, self.options.check)
        try:
            return operation.run(session, self.arrays)
        finally:
            self.prepare_ns = operation.prepare_ns

    def end(self, outcome: Any) -> None:
        """Respond with the run's result, or with the exception in its place."""
        if isinstance(outcome, BaseException):
            self._fail(outcome, failed=self.session is not None)
            return
        operation = self._operation
        ended_ns = time.perf_counter_ns()
        try:
            result = operation.respond(outcome)
        except BaseException as error:
            self._fail(error, failed=False)  # the run itself succeeded
            return
        prepare_ns = operation.prepare_ns
        timing = (
            self.queue_ns,
            self.submitted_ns - self.started_ns + prepare_ns,
            self.run_ns - prepare_ns,
            time.perf_counter_ns() - ended_ns,
            operation.rows,
            operation.executions or self.executions,
            self.batch_rows,
        )
        if self._sequence is not None:
            self.leave_sequence(failed=False)
        if self.release is not None:
            self.release(self)
        self.statistics.record_success(timing)
        if operation.timed:
            result.timing = Timing(*timing)
        self.done(result)

    def _fail(self, error: BaseException, *, failed: bool) -> None:
        """Respond with an exception.

        Args:
            failed: the run failed, and may have left a sequence's state undefined.
        """
        if self._sequence is not None:
            self.leave_sequence(failed=failed)
        if self.release is not None:
            self.release(self)
        code = error.code if isinstance(error, ApiError) else None
        self.statistics.record_failure(time.perf_counter_ns() - self.started_ns, code)
        if self._explain is not None and isinstance(error, ApiError):
            error = self._explain(error)
        self.done(error)

    def leave_sequence(self, *, failed: bool) -> None:
        """Leave the sequence that :meth:`start` entered, if there is one."""
        sequence = self._sequence
        if sequence is None:
            return
        self._sequence = None
        assert self.handle is not None
        assert self.handle.sequences is not None
        step = self._operation.step
        assert step is not None
        self.handle.sequences.leave(step, sequence, self, failed=failed)


def prepare_operation(
    handle: ModelHandle,
    payload: Payload,
    options: RequestOptions,
    budget: BytePool | None,
) -> TensorOperation | TaskOperation | GenerationOperation:
    """Check a request and return its operation.

    Raises:
        ApiError: the request is invalid.
    """
    if isinstance(payload, EncodedPayload):
        decoded = TensorPayload(payload.template.read(payload.body))
        return TensorOperation(handle, decoded, options, encoded=True)
    if isinstance(payload, TensorPayload):
        return TensorOperation(handle, payload, options, encoded=False)
    if isinstance(payload, GenerationPayload) or _generates(payload, handle):
        # Imported late: few models generate text.
        from pocketserve.inference.generation import GenerationOperation

        return GenerationOperation(handle, payload, options)
    return _task_operation(handle, payload, options, budget)


def _task_operation(
    handle: ModelHandle,
    payload: RawPayload | TranscriptionPayload,
    options: RequestOptions,
    budget: BytePool | None,
) -> TaskOperation:
    transcribes = getattr(handle.model.task, "transcribes", False)
    if isinstance(payload, RawPayload) and not transcribes:
        # Imported late: a server may be asked for tensors only.
        from pocketserve.inference.task_operation import TaskOperation

        return TaskOperation(handle, payload, options, budget)
    # Imported late: few models transcribe.
    if isinstance(payload, RawPayload) and step_of(payload.parameters, options.owner):
        from pocketserve.inference.speech.captioning import CaptionOperation

        return CaptionOperation(handle, payload, options, budget)
    from pocketserve.inference.speech.transcription import TranscriptionOperation

    return TranscriptionOperation(handle, payload, options, budget)


def _generates(
    payload: RawPayload | TranscriptionPayload, handle: ModelHandle
) -> TypeGuard[RawPayload]:
    """Return whether the model answers raw input by generating text."""
    is_plain = isinstance(payload, RawPayload)
    return is_plain and getattr(handle.model.task, "generates", False)


class CallerExecutor:
    """Run a call on the thread that waits for it.

    Pass :attr:`execute` and :meth:`done` to the call. The wait ends: the engine fails
    each request at its deadline.
    """

    __slots__ = ("_jobs", "_outcome", "execute")

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._outcome: list[Any] = []
        self.execute = self._jobs.put

    def done(self, outcome: Any) -> None:
        """Store the call's outcome and wake the waiting thread."""
        self._outcome.append(outcome)
        self._jobs.put(None)

    def wait(self, job: Job | None) -> Any:
        """Run jobs until the call has ended; return its outcome."""
        while not self._outcome:
            while job is not None:
                job = job()
            if not self._outcome:
                job = self._jobs.get()
        return self._outcome.pop()
