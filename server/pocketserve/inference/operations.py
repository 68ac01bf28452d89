"""The run that a call needs: its inputs, validated or compiled before it waits, and its answer after the run.

Each operation has the entry point as ``signature``, its batch rows, the number of runs where its queue cannot count
them (else 0), a ``run``, which takes a session and the inputs that can be batched, and a ``respond``; and as
``prepare_ns`` the part of its run that prepared the input.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.inference.compile import CompiledRequest, keep_compiled
from pocketserve.inference.payload import EncodedPayload, Payload, Prediction, RawPayload, TensorPayload
from pocketserve.inference.respond import output_tensor, task_outputs
from pocketserve.inference.run import run_inputs, run_session, run_steps
from pocketserve.inference.validate import Inputs, collect, raw_tensor, requested_outputs, signature_of
from pocketserve.runtimes.base import Session
from pocketserve.tasks.base import Annotator, Arrays, ExtendedAnswer, Task
from pocketserve.tasks.cancellation import BytePool, cancellation_scope, hold_document
from pocketserve.tensors import Array, to_tensor
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.oip import EncodedBody, InferResponse, encode_infer_response

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence
    from pocketserve.engine.lifecycle.sequences import SequenceStep

SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})
NO_INPUTS = Inputs({}, 0, False, False, {})  # of a request that only ends a sequence


class TensorOperation:
    """A tensor request.

    Args:
        encoded: the result is an EncodedBody with raw tensors, not an InferResponse.

    Attributes:
        step: of its sequence, if it is one; its state is in ``sequence`` then.

    Raises:
        ApiError: for every fault of the request.
    """

    timed = False
    prepare_ns = 0
    sequence: OpenSequence | None = None

    def __init__(self, handle: ModelHandle, payload: TensorPayload, options: RequestOptions, encoded: bool) -> None:
        self._handle, self._request, self._options, self._encoded = handle, payload.request, options, encoded
        request, model = payload.request, handle.model
        self.signature = signature_of(request, handle)
        self._bindings, outputs = model.entry_points[self.signature]
        tensors = request.inputs if request.raw is None else [raw_tensor(request.raw, self._bindings)]
        self.step = step = _step_of(request.parameters)
        if step is not None and self.signature is not None and handle.sequences is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "sequences work with the default signature only")
        self._closes = step is not None and step.end and not tensors
        self._outputs = [] if self._closes else requested_outputs(request.outputs, outputs)
        first_state = model.first_state if self.signature is None else {}
        inputs = NO_INPUTS if self._closes else collect(tensors, self._bindings, payload.row_by_row, first_state)
        self._inputs = inputs
        self.rows = inputs.rows
        self.executions = inputs.rows if inputs.row_by_row else 0
        self.arrays = None if inputs.row_by_row or inputs.state or self.step is not None else inputs.arrays

    def run(self, session: Session, _arrays: Arrays | None) -> dict[str, Array]:
        """Run the model, with its sequence's state where it has one; not for what only ends a sequence."""
        if self._closes:
            return {}
        inputs, sequence = self._inputs, self.sequence
        if sequence is None:
            return run_inputs(session, inputs, self.signature, self._options.cancellation)
        outputs = run_session(session, {**inputs.state, **sequence.state, **inputs.arrays}, self.signature)
        sequence.state = {name: outputs[output] for name, output in self._handle.model.feedback.items()}
        return outputs

    def respond(self, result: Mapping[str, Array]) -> InferResponse | EncodedBody:
        """Return the outputs as the caller asked for them."""
        model, inputs, request = self._handle.model, self._inputs, self._request
        labels = getattr(model.task, "labels", ())
        batch = self._bindings.specs[0].shape[:1] if self._bindings.specs else ()
        outputs = [
            output_tensor(requested, spec, result[own], inputs.reals, labels, batch)
            for requested, (spec, own) in self._outputs
        ]
        response = InferResponse(model.entry.name, model.version.name, outputs, id=request.id)
        if (
            request.template is not None
            and self.step is None
            and not (inputs.row_by_row or inputs.reals or inputs.state)
        ):
            keep_compiled(self._handle, request.template, self.signature, inputs.rows, self._bindings, self._outputs)
        return encode_infer_response(response, True) if self._encoded else response


class TaskOperation:
    """Raw input for the model's task: one run, or several under one session.

    Args:
        budget: what decoding takes its memory from.

    Raises:
        ApiError: INVALID_INPUT and others for a fault of the input.
    """

    signature = None
    timed = True
    prepare_ns = 0
    sequence: OpenSequence | None = None

    def __init__(
        self, handle: ModelHandle, payload: RawPayload, options: RequestOptions, budget: BytePool | None
    ) -> None:
        self._handle, self._payload, self._options, self._budget = handle, payload, options, budget
        self.step = _step_of(payload.parameters)
        task = handle.model.task
        if "annotate" in payload.options.values and not isinstance(task, Annotator):
            raise ApiError(ErrorCode.INVALID_PARAMETER, f"annotate: the task {task.name} has no picture to draw on")
        self.arrays: Arrays | None = None
        self.rows, self.executions = 1, 0
        self._is_deferred = bool(options.stream) and self.step is None
        if not self._is_deferred:
            handle.queue.check_room(options.rank, options.stream)  # decoding may cost more than the model
            self._prepare()

    def _prepare(self) -> None:
        """Decode the input; for a stream's when it runs, as a newer one may take its place until then."""
        handle, payload, task = self._handle, self._payload, self._handle.model.task
        # To wait for memory with the session in hand would hold up all other requests of the model.
        with cancellation_scope(self._options.check, self._budget, waits=not self._is_deferred):
            hold_document(payload.body)
            prepared = task.prepare(payload.body, payload.hints)
        self._context, self._chained = prepared.context, prepared.chained
        try:
            self._steps = [self._collect(arrays) for arrays in prepared.runs]
        except ApiError as error:
            _raise_fault_of_task(task, error)
            raise
        only = self._steps[0] if len(self._steps) == 1 else None
        plain = only is not None and not only.row_by_row
        if self.step is not None and handle.sequences is not None and not (plain or self._chained):
            text = "a step of a sequence is one run of the model, and this input takes several; send it in parts"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        if only is not None and not (only.row_by_row or only.state) and self.step is None:
            self.arrays = only.arrays
        self.rows = sum(step.rows for step in self._steps)
        self.executions = 0 if plain else sum(step.rows if step.row_by_row else 1 for step in self._steps)

    def _collect(self, arrays: Arrays) -> Inputs:
        model, bindings = self._handle.model, self._handle.model.inputs
        tensors = []
        for name, array in arrays.items():
            bf16 = bindings.by_name[name][0].datatype == "BF16" and array.dtype == np.uint16
            tensors.append(to_tensor(name, array, "BF16" if bf16 else None))
        return collect(tensors, bindings, row_by_row=True, first_state=model.first_state)

    def run(self, session: Session, _arrays: Arrays | None) -> Any:
        """Run the model; return one run's outputs, or a list of several runs'."""
        if self._is_deferred:
            began = time.perf_counter_ns()
            self._prepare()
            self.prepare_ns = time.perf_counter_ns() - began
            self._options.check()  # the queue has looked before
        cancellation = self._options.cancellation
        try:
            if len(self._steps) == 1 and self.sequence is None:
                return run_inputs(session, self._steps[0], None, cancellation)
            feedback = self._handle.model.feedback if self._chained or self.sequence is not None else None
            return run_steps(session, self._steps, feedback, cancellation, self.sequence)
        except ApiError as error:
            _raise_fault_of_task(self._handle.model.task, error)
            raise

    def respond(self, result: Any) -> Prediction:
        """Return the labelled answer, with its picture where it is asked for."""
        model, options, check = self._handle.model, self._payload.options, self._options.check
        task = model.task
        results = result if isinstance(result, list) else [result]
        runs = [task_outputs(self._handle, out, step.reals) for out, step in zip(results, self._steps, strict=True)]
        try:
            # A model's outputs may be no numbers; tasks leave those out themselves.
            with np.errstate(all="ignore"), cancellation_scope(check, self._budget):
                answer = task.answer(runs, options, self._context)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            reason = f"the outputs do not fit the task {task.name}: {str(error)[:300]}"
            raise ApiError(ErrorCode.INFERENCE_FAILED, f"{reason}; see its model.toml") from error
        entries, more = (answer.entries, answer.more) if isinstance(answer, ExtendedAnswer) else (answer, {})
        picture = None
        if "annotate" in options.values and isinstance(task, Annotator):
            with cancellation_scope(check, self._budget):
                picture = task.annotate(self._payload.body, self._payload.hints, runs, entries, self._context)
            if options.values["annotate"] == "both":
                import base64  # late: few ask for a picture

                more, picture = {**more, "picture": base64.b64encode(picture).decode()}, None
        return Prediction(model.entry.name, model.version.name, task.name, entries, more, picture)


Operation = CompiledRequest | TensorOperation | TaskOperation


def prepare_operation(
    handle: ModelHandle, payload: Payload, options: RequestOptions, budget: BytePool | None
) -> tuple[Operation, Arrays | None]:
    """Return what a call has to run, and its inputs by the session's names; None where they cannot be batched.

    Raises:
        ApiError: for every fault of the request.
    """
    if isinstance(payload, EncodedPayload):
        template, body = payload
        compiled: CompiledRequest | None = handle.compiled.get(template)
        if compiled is not None:
            return compiled, compiled.arrays(body)
        payload, encoded = TensorPayload(template.read(body)), True
    else:
        encoded = False
    if isinstance(payload, TensorPayload):
        tensors = TensorOperation(handle, payload, options, encoded)
        return tensors, tensors.arrays
    raw = TaskOperation(handle, payload, options, budget)
    return raw, raw.arrays


def _step_of(parameters: Mapping[str, Any]) -> SequenceStep | None:
    if SEQUENCE_PARAMETERS.isdisjoint(parameters):
        return None
    from pocketserve.engine.lifecycle.sequences import read_step  # late: few models keep state

    return read_step(parameters)


def _raise_fault_of_task(task: Task, error: ApiError) -> None:
    """Raise INFERENCE_FAILED for tensors that code in the model's folder made: they are not the caller's fault."""
    source = getattr(task, "source", "")
    if source and error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_TENSOR):
        reason = f"{source} returned what the model does not take: {error.message}"
        raise ApiError(ErrorCode.INFERENCE_FAILED, reason) from error
