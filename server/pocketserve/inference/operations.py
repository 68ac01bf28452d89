"""The run that a call needs: its inputs, validated or compiled before it waits, and its answer after the run.

Each operation has the entry point as ``signature``, its batch rows, the number of runs where its queue cannot count
them (else 0), a ``run``, which takes a session and the inputs that can be batched, and a ``respond``; and as
``prepare_ns`` the part of its run that prepared the input.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.inference.compile import CompiledRequest, keep_compiled
from pocketserve.inference.payload import (
    EncodedPayload,
    Payload,
    Prediction,
    RawInput,
    RawPayload,
    TensorPayload,
    is_direct_input,
    media_of,
)
from pocketserve.inference.respond import output_tensor, task_outputs
from pocketserve.inference.run import run_inputs, run_session, run_steps
from pocketserve.inference.validate import (
    Inputs,
    collect,
    raw_tensor,
    requested_outputs,
    signature_of,
)
from pocketserve.runtimes.base import Session
from pocketserve.tasks.base import (
    Annotator,
    Answer,
    Arrays,
    ExtendedAnswer,
    Task,
    TensorForm,
)
from pocketserve.tasks.cancellation import (
    BytePool,
    cancellation_scope,
    hold_document,
    hold_documents,
)
from pocketserve.tensors import Array, to_tensor
from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import EncodedBody, InferResponse, encode_infer_response

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence
    from pocketserve.engine.lifecycle.sequences import SequenceStep

SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})
MAX_PREPARED_BYTES = (
    1 << 28
)  # of the tensors of a request with several raw inputs, which all wait for its turn
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

    def __init__(
        self,
        handle: ModelHandle,
        payload: TensorPayload,
        options: RequestOptions,
        encoded: bool,
    ) -> None:
        self._handle, self._request, self._options, self._encoded = (
            handle,
            payload.request,
            options,
            encoded,
        )
        request, model = payload.request, handle.model
        self.signature = signature_of(request, handle)
        self._bindings, outputs = model.entry_points[self.signature]
        tensors: Sequence[Tensor] = request.inputs
        if request.raw is not None:
            tensors = [raw_tensor(request.raw, self._bindings)]
        self._is_joined = False
        if len(tensors) and tensors[0].name not in self._bindings.by_name:
            from pocketserve.inference.columns import (
                join_columns,
            )  # late: few requests have columns

            columns = tensors
            tensors = join_columns(columns, self._bindings, model.task)
            self._is_joined = tensors is not columns
        self.step = step = _step_of(request.parameters, options.owner)
        if (
            step is not None
            and self.signature is not None
            and handle.sequences is not None
        ):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "sequences work with the default signature only",
            )
        self._closes = step is not None and step.end and not tensors
        self._outputs = (
            [] if self._closes else requested_outputs(request.outputs, outputs)
        )
        first_state = model.first_state if self.signature is None else {}
        inputs = (
            NO_INPUTS
            if self._closes
            else collect(tensors, self._bindings, payload.row_by_row, first_state)
        )
        self._inputs = inputs
        self.rows = inputs.rows
        self.executions = inputs.rows if inputs.row_by_row else 0
        self.arrays = (
            None
            if inputs.row_by_row or inputs.state or self.step is not None
            else inputs.arrays
        )

    def run(self, session: Session, _arrays: Arrays | None) -> dict[str, Array]:
        """Run the model, with its sequence's state where it has one; not for what only ends a sequence."""
        if self._closes:
            return {}
        inputs, sequence = self._inputs, self.sequence
        if sequence is None:
            return run_inputs(
                session, inputs, self.signature, self._options.cancellation
            )
        outputs = run_session(
            session, {**inputs.state, **sequence.state, **inputs.arrays}, self.signature
        )
        sequence.state = {
            name: outputs[output]
            for name, output in self._handle.model.feedback.items()
        }
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
        response = InferResponse(
            model.entry.name, model.version.name, outputs, id=request.id
        )
        if (
            request.template is not None
            and self.step is None
            and not self._is_joined
            and not (inputs.row_by_row or inputs.reals or inputs.state)
        ):
            keep_compiled(
                self._handle,
                request.template,
                self.signature,
                inputs.rows,
                self._bindings,
                self._outputs,
            )
        return encode_infer_response(response, True) if self._encoded else response


class PreparedInput(NamedTuple):
    """An input of a task, ready to run.

    Attributes:
        context: what the task's answer needs to know of it.
        chained: its runs are steps of one sequence.
    """

    source: RawInput
    steps: list[Inputs]
    context: Any
    chained: bool


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
        self,
        handle: ModelHandle,
        payload: RawPayload,
        options: RequestOptions,
        budget: BytePool | None,
    ) -> None:
        self._handle, self._payload, self._options, self._budget = (
            handle,
            payload,
            options,
            budget,
        )
        self.step = _step_of(payload.parameters, options.owner)
        self._answer_options = payload.options
        self._is_list = False
        self._inputs: list[PreparedInput] = []
        self._check_annotation()
        self.arrays: Arrays | None = None
        self.rows, self.executions = 1, 0
        self._is_deferred = bool(options.stream) and self.step is None
        if not self._is_deferred:
            handle.queue.check_room(
                options.rank, options.stream
            )  # decoding may cost more than the model
            self._prepare()

    def _check_annotation(self) -> None:
        task = self._handle.model.task
        if "annotate" in self._answer_options.values and not isinstance(
            task, Annotator
        ):
            raise ApiError(
                ErrorCode.INVALID_PARAMETER,
                f"annotate: the task {task.name} has no picture to draw on",
            )

    def _prepare(self) -> None:
        """Decode the input; for a stream's when it runs, as a newer one may take its place until then."""
        handle, payload, task = self._handle, self._payload, self._handle.model.task
        if is_direct_input(payload, media_of(task)):
            sources: Sequence[RawInput] = [RawInput(payload.body, payload.hints)]
        else:
            sources = self._read_sources()
        inputs: list[PreparedInput] = []
        size = 0
        for source in sources:
            inputs.append(self._prepare_input(source))
            size += (
                sum(step.size for step in inputs[-1].steps) if len(sources) > 1 else 0
            )
            if size > MAX_PREPARED_BYTES:
                raise ApiError(
                    ErrorCode.INVALID_INPUT,
                    "the inputs are too many for one request; send them in parts",
                )
        self._inputs = inputs
        steps = (
            inputs[0].steps
            if len(inputs) == 1
            else [step for item in inputs for step in item.steps]
        )
        only = steps[0] if len(steps) == 1 else None
        plain = only is not None and not only.row_by_row
        chained = len(inputs) == 1 and inputs[0].chained
        if (
            self.step is not None
            and handle.sequences is not None
            and not (plain or chained)
        ):
            text = "a step of a sequence is one run of the model, and this input takes several; send it in parts"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        if (
            only is not None
            and not (only.row_by_row or only.state)
            and self.step is None
        ):
            self.arrays = only.arrays
        self.rows = sum(step.rows for step in steps)
        self.executions = (
            0 if plain else sum(step.rows if step.row_by_row else 1 for step in steps)
        )

    def _read_sources(self) -> Sequence[RawInput]:
        """Return the inputs of a body in another program's form; its fields may hold parameters."""
        from pocketserve.inference.raw_input import (
            read_raw_inputs,
        )  # late: few requests need it

        task = self._handle.model.task
        names = [spec.name for spec in self._handle.model.inputs.specs]
        with self._scope():
            inputs, self._answer_options, self._is_list = read_raw_inputs(
                self._payload, task, names
            )
        self._check_annotation()
        if self._is_list and "annotate" in self._answer_options.values:
            raise ApiError(
                ErrorCode.INVALID_PARAMETER,
                "annotate takes one picture in a request, not several",
            )
        return inputs

    def _prepare_input(self, source: RawInput) -> PreparedInput:
        task = self._handle.model.task
        with self._scope():
            if source.tensors:
                if not isinstance(task, TensorForm):
                    raise ApiError(
                        ErrorCode.INVALID_INPUT,
                        "this model takes no form with several fields",
                    )
                hold_documents(source.tensors.values())
                prepared = task.prepare_tensors(source.tensors)
            else:
                hold_document(source.body)
                prepared = task.prepare(source.body, source.hints)
        try:
            steps = [self._collect(arrays) for arrays in prepared.runs]
        except ApiError as error:
            _raise_fault_of_task(task, error)
            raise
        return PreparedInput(source, steps, prepared.context, prepared.chained)

    def _scope(self) -> cancellation_scope:
        # To wait for memory with the session in hand would hold up all other requests of the model.
        return cancellation_scope(
            self._options.check, self._budget, waits=not self._is_deferred
        )

    def _collect(self, arrays: Arrays) -> Inputs:
        model, bindings = self._handle.model, self._handle.model.inputs
        tensors = []
        for name, array in arrays.items():
            bf16 = (
                bindings.by_name[name][0].datatype == "BF16"
                and array.dtype == np.uint16
            )
            tensors.append(to_tensor(name, array, "BF16" if bf16 else None))
        return collect(
            tensors, bindings, row_by_row=True, first_state=model.first_state
        )

    def run(self, session: Session, _arrays: Arrays | None) -> Any:
        """Run the model; return one run's outputs, or a list of those of all runs."""
        if self._is_deferred:
            began = time.perf_counter_ns()
            self._prepare()
            self.prepare_ns = time.perf_counter_ns() - began
            self._options.check()  # the queue has looked before
        inputs = self._inputs
        try:
            if len(inputs) == 1 and len(inputs[0].steps) == 1 and self.sequence is None:
                return run_inputs(
                    session, inputs[0].steps[0], None, self._options.cancellation
                )
            results = []
            for item in inputs:
                results.extend(self._run_steps(session, item))
            return results
        except ApiError as error:
            _raise_fault_of_task(self._handle.model.task, error)
            raise

    def _run_steps(
        self, session: Session, item: PreparedInput
    ) -> list[dict[str, Array]]:
        is_chain = item.chained or self.sequence is not None
        feedback = self._handle.model.feedback if is_chain else None
        return run_steps(
            session, item.steps, feedback, self._options.cancellation, self.sequence
        )

    def respond(self, result: Any) -> Prediction:
        """Return the labelled answer, with its picture where it is asked for."""
        results = result if isinstance(result, list) else [result]
        if not self._is_list:
            runs = self._task_outputs(results, self._inputs[0])
            entries, more = self._answer(runs, self._inputs[0])
            picture = self._annotate(runs, entries)
            if (
                picture is not None
                and self._answer_options.values["annotate"] == "both"
            ):
                import base64  # late: few ask for a picture

                more, picture = (
                    {**more, "picture": base64.b64encode(picture).decode()},
                    None,
                )
            return self._prediction(entries, more, picture)
        per_input: list[Answer] = []
        extras: dict[str, list[Any]] = {}
        start = 0
        for item in self._inputs:
            end = start + len(item.steps)
            entries, more = self._answer(
                self._task_outputs(results[start:end], item), item
            )
            per_input.append(entries)
            for name, value in more.items():
                extras.setdefault(name, []).append(value)
            start = end
        flat = _numbered(per_input)
        return self._prediction(flat, extras, None, per_input)

    def _prediction(
        self,
        entries: Answer,
        more: Mapping[str, Any],
        picture: bytes | None,
        per_input: Sequence[Answer] = (),
    ) -> Prediction:
        model = self._handle.model
        return Prediction(
            model=model.entry.name,
            version=model.version.name,
            task=model.task.name,
            predictions=entries,
            more=more,
            picture=picture,
            assumed=model.assumed,
            per_input=per_input,
        )

    def _task_outputs(
        self, results: Sequence[Mapping[str, Array]], item: PreparedInput
    ) -> list[Arrays]:
        pairs = zip(results, item.steps, strict=True)
        return [
            task_outputs(self._handle, outputs, step.reals) for outputs, step in pairs
        ]

    def _answer(
        self, runs: list[Arrays], item: PreparedInput
    ) -> tuple[Answer, Mapping[str, Any]]:
        """Return the task's entries for one input, and what it answers beside them."""
        task = self._handle.model.task
        try:
            # A model's outputs may be no numbers; tasks leave those out themselves.
            with (
                np.errstate(all="ignore"),
                cancellation_scope(self._options.check, self._budget),
            ):
                answer = task.answer(runs, self._answer_options, item.context)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            reason = f"the outputs do not fit the task {task.name}: {str(error)[:300]}"
            raise ApiError(
                ErrorCode.INFERENCE_FAILED, f"{reason}; see its model.toml"
            ) from error
        return (
            (answer.entries, answer.more)
            if isinstance(answer, ExtendedAnswer)
            else (answer, {})
        )

    def _annotate(self, runs: list[Arrays], entries: Answer) -> bytes | None:
        """Return the picture with the answer drawn on it; None where the request asks for none."""
        task = self._handle.model.task
        if "annotate" not in self._answer_options.values or not isinstance(
            task, Annotator
        ):
            return None
        item = self._inputs[0]
        hints = item.source.hints
        with cancellation_scope(self._options.check, self._budget):
            return task.annotate(item.source.body, hints, runs, entries, item.context)


def _numbered(per_input: Sequence[Answer]) -> Answer:
    """Return the entries of all inputs, each with the number of its input from 0."""
    entries: Answer = []
    for number, answer in enumerate(per_input):
        entries.extend({**entry, "input": number} for entry in answer)
    return entries


Operation = CompiledRequest | TensorOperation | TaskOperation


def prepare_operation(
    handle: ModelHandle,
    payload: Payload,
    options: RequestOptions,
    budget: BytePool | None,
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


def _step_of(parameters: Mapping[str, Any], owner: str) -> SequenceStep | None:
    if SEQUENCE_PARAMETERS.isdisjoint(parameters):
        return None
    from pocketserve.engine.lifecycle.sequences import (
        read_step,
    )  # late: few models keep state

    return read_step(parameters, owner)


def _raise_fault_of_task(task: Task, error: ApiError) -> None:
    """Raise INFERENCE_FAILED for tensors that code in the model's folder made: they are not the caller's fault."""
    source = getattr(task, "source", "")
    if source and error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_TENSOR):
        reason = f"{source} returned what the model does not take: {error.message}"
        raise ApiError(ErrorCode.INFERENCE_FAILED, reason) from error
