"""One request on one loaded model: check the tensors, take a turn, run, translate back."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.lane import Turn
from pocketserve.engine.running import Running
from pocketserve.engine.sequences import SequenceStep, SequenceTable, read_step
from pocketserve.engine.statistics import Timing
from pocketserve.engine.terms import Terms
from pocketserve.prepared import Prepared, remember
from pocketserve.runtimes.base import Session
from pocketserve.tasks.base import NO_HINTS, Annotator, Answer, AnswerOptions, Arrays, Detailed, Hints, OwnTensors, Task
from pocketserve.tasks.labels import label_of
from pocketserve.tasks.wanted import while_wanted
from pocketserve.tensors import Array, TensorSpec, check_against, dequantize, quantize, to_array, to_tensor, zeros
from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import (
    EncodedBody,
    InferRequest,
    InferResponse,
    Plan,
    RequestedOutput,
    encode_infer_response,
    raw_input,
)
from pocketserve_wire.records import dataclass
from pocketserve_wire.tensor import invalid

Bound = tuple[TensorSpec, str]
"""A tensor as callers see it, and the session's own name for it."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer to raw input. The task's own steps count as input and output in the timing.

    Attributes:
        more: what the task answers beside the predictions, by name.
        picture: the input with the answer drawn on it, a PNG file; None unless it was asked for.
    """

    model: str
    version: str
    task: str
    predictions: Answer
    timing: Timing
    more: Mapping[str, Any] = field(default_factory=dict)
    picture: bytes | None = None


@dataclass(slots=True)
class _Inputs:
    """What a request sends to the model.

    Attributes:
        arrays: what the caller gave, by the session's names.
        rows: batch rows in it.
        row_by_row: the model takes them one at a time.
        reals: real numbers were sent to a quantised model.
        state: inputs that a stateful model takes from its last step, as they are at the first.
    """

    arrays: dict[str, Array]
    rows: int
    row_by_row: bool
    reals: bool
    state: dict[str, Array]


def run_tensors(
    running: Running, request: InferRequest, terms: Terms, row_by_row: bool = False
) -> tuple[InferResponse, Timing]:
    """Answer a tensor request.

    Args:
        row_by_row: let a model that is fixed to one row answer several, one run after the other in one turn.

    Raises:
        ApiError: for every fault of the request; INFERENCE_FAILED when the framework raises.
    """
    began = time.perf_counter_ns()
    model = running.model
    signature = _signature(request, running)
    bound_in, bound_out = model.entry_points[signature]
    tensors = request.inputs if request.raw is None else [_raw_tensor(request.raw, bound_in)]
    wanted = _wanted(request.outputs, bound_out)
    inputs = _collect(tensors, bound_in, row_by_row, model.feedback if signature is None else {})
    step = read_step(request.parameters)
    ready = time.perf_counter_ns()
    turn = _take_turn(running, signature, inputs, terms, step)
    infer_end = time.perf_counter_ns()
    labels = getattr(model.task, "labels", ())
    batched = bool(bound_in.specs) and bound_in.specs[0].shape[:1] == (-1,)
    outputs = [_output(asked, spec, turn.result[own], inputs.reals, labels, batched) for asked, (spec, own) in wanted]
    timing = _timing(turn, began, ready, infer_end, [inputs])
    if request.plan is not None and step is None and not (inputs.row_by_row or inputs.reals or inputs.state):
        remember(running, request.plan, signature, inputs.rows, bound_in, wanted)
    return InferResponse(model.entry.name, model.version.name, outputs, id=request.id), timing


def run_planned(running: Running, asked: tuple[Plan, memoryview], terms: Terms) -> tuple[EncodedBody, Timing]:
    """Answer a tensor request whose JSON part is known, with raw tensors only.

    Args:
        asked: the plan of the body, and the body.

    Raises:
        ApiError: as :func:`run_tensors`.
    """
    began = time.perf_counter_ns()
    plan, body = asked
    prepared: Prepared | None = running.prepared.get(plan)
    if prepared is None:
        response, timing = run_tensors(running, plan.read(body), terms)
        return encode_infer_response(response, True), timing
    work = _PlainWork(prepared.arrays(body), prepared.signature)
    ready = time.perf_counter_ns()
    turn = running.lane.run(work, terms)
    infer_end = time.perf_counter_ns()
    encoded = prepared.encode(turn.result)
    input_ns, output_ns = ready - began, time.perf_counter_ns() - infer_end
    return encoded, Timing(
        turn.queue_ns, input_ns, turn.run_ns, output_ns, prepared.rows, turn.executions, turn.batch_rows
    )


def run_raw_input(
    running: Running, body: memoryview, options: AnswerOptions, terms: Terms, hints: Hints = NO_HINTS
) -> Prediction:
    """Answer raw input through the model's task.

    Raises:
        ApiError: INVALID_INPUT and others for a fault of the input; INFERENCE_FAILED when the framework raises.
    """
    began = time.perf_counter_ns()
    model = running.model
    wants_picture = "annotate" in options.values
    if wants_picture and not isinstance(model.task, Annotator):
        raise ApiError(ErrorCode.INVALID_PARAMETER, f"annotate: the task {model.task.name} has no picture to draw on")
    running.lane.refuse_if_full(terms)  # before the picture is decoded, which may cost more than the model
    with while_wanted(terms.check):
        prepared = model.task.prepare(body, hints)
    try:
        steps = [_collect_run(running, arrays) for arrays in prepared.runs]
        ready = time.perf_counter_ns()
        turn = _take_runs(running, steps, prepared.chained, terms)
    except ApiError as error:
        _blame(model.task, error)
        raise
    infer_end = time.perf_counter_ns()
    runs = [_task_outputs(running, outputs, step.reals) for outputs, step in zip(turn.result, steps, strict=True)]
    try:
        with np.errstate(all="ignore"):  # what a model gives may be no number; tasks leave that out by themselves
            given = model.task.answer(runs, options, prepared.context)
    except (ValueError, TypeError, IndexError, KeyError) as error:
        reason = f"the outputs do not fit the task {model.task.name}: {str(error)[:300]}"
        raise ApiError(ErrorCode.INFERENCE_FAILED, f"{reason}; see its model.toml") from error
    answer, more = (given.entries, given.more) if isinstance(given, Detailed) else (given, {})
    picture = None
    if wants_picture and isinstance(model.task, Annotator):
        picture = model.task.annotate(body, hints, runs, answer, prepared.context)
        if options.values["annotate"] == "both":
            import base64  # late: few ask for a picture

            more, picture = {**more, "picture": base64.b64encode(picture).decode()}, None
    timing = _timing(turn, began, ready, infer_end, steps)
    return Prediction(model.entry.name, model.version.name, model.task.name, answer, timing, more, picture)


def _blame(task: Task, error: ApiError) -> None:
    """Turn a fault of tensors that code in the model's folder made into INFERENCE_FAILED: it is not the caller's."""
    source = task.source if isinstance(task, OwnTensors) else ""
    if source and error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_TENSOR):
        reason = f"{source} returned what the model does not take: {error.message}"
        raise ApiError(ErrorCode.INFERENCE_FAILED, reason) from error


def _collect_run(running: Running, arrays: Arrays) -> _Inputs:
    model = running.model
    tensors = [to_tensor(name, array, _kept_datatype(model.inputs, name, array)) for name, array in arrays.items()]
    return _collect(tensors, model.inputs, row_by_row=True, feedback=model.feedback)


def _take_runs(running: Running, steps: Sequence[_Inputs], chained: bool, terms: Terms) -> Turn[list[dict[str, Array]]]:
    """All runs of one raw input in one turn; chained ones hand the model's state on."""
    if len(steps) == 1:
        one = running.lane.run(_Work(steps[0], None, terms), terms)
        return Turn([one.result], one.queue_ns, one.run_ns, one.executions, one.batch_rows)
    feedback = running.model.feedback

    def work(session: Session) -> list[dict[str, Array]]:
        results: list[dict[str, Array]] = []
        state: dict[str, Array] = {}
        for index, step in enumerate(steps):
            if step.row_by_row:
                results.append(_run_rows(session, step, None, terms))
                continue
            _check_wanted(terms)
            if index == 0 or not chained:
                _forget(session)
            results.append(_run(session, {**step.state, **state, **step.arrays}, None))
            if chained:
                state = {taken: results[-1][given] for taken, given in feedback.items()}
        return results

    return running.lane.run(work, terms)


def _task_outputs(running: Running, result: Mapping[str, Array], reals: bool) -> dict[str, Array]:
    """One run's outputs by the names that callers see; real numbers where real numbers were sent."""
    outputs = {}
    for spec in running.model.outputs.specs:
        array = result[running.model.outputs.by_name[spec.name][1]]
        outputs[spec.name] = dequantize(array, spec) if reals and spec.quantization else array
    return outputs


def _signature(request: InferRequest, running: Running) -> str | None:
    name = request.parameters.get("signature_name")
    if name is None or name == "":
        return None
    if name not in running.model.entry_points:
        known = ", ".join(repr(known) for known in running.model.entry_points if known is not None) or "none"
        raise ApiError(ErrorCode.INVALID_PARAMETER, f"unknown signature_name {name!r:.80}; the model has {known}")
    return str(name)


def _raw_tensor(body: memoryview, bound: Bindings) -> Tensor:
    if len(bound.specs) != 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"a body without JSON works for models with one input; this one has {len(bound.specs)}: {bound.names()}",
        )
    spec = bound.specs[0]
    return raw_input(body, spec.name, spec.datatype, spec.shape)


def _wanted(asked: Sequence[RequestedOutput], bound: Bindings) -> list[tuple[RequestedOutput, Bound]]:
    """The outputs to answer, in the model's order or in the order asked for."""
    if not asked:
        return [(RequestedOutput(spec.name), bound.by_name[spec.name]) for spec in bound.specs]
    wanted = []
    for output in asked:
        if output.name not in bound.by_name:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"unexpected inference output {output.name!r}; the model has {bound.names()}",
            )
        wanted.append((output, bound.by_name[output.name]))
    return wanted


def _collect(tensors: Sequence[Tensor], bound: Bindings, row_by_row: bool, feedback: Mapping[str, str]) -> _Inputs:
    """Check the tensors against the model and give them the session's names.

    Raises:
        ApiError: INVALID_REQUEST for wrong names; INVALID_TENSOR for wrong datatypes or shapes.
    """
    arrays: dict[str, Array] = {}
    reals = splits = False
    rows = 1
    for tensor in tensors:
        if tensor.name not in bound.by_name:
            raise _bad_inputs(f"unexpected inference input {tensor.name!r}", bound)
        spec, own = bound.by_name[tensor.name]
        if own in arrays:
            raise _bad_inputs(f"input {spec.name!r} is given twice under different names", bound)
        split = row_by_row and _is_rows_for_one(spec, tensor.shape)
        check_against(spec, tensor, rows_free=split)
        array = to_array(tensor)
        if spec.quantization is not None and tensor.datatype == "FP32":
            array, reals = quantize(array, spec), True
        arrays[own] = array
        splits = splits or split
        if split or (tensor.shape and spec.shape[:1] == (-1,)):
            rows = max(rows, tensor.shape[0])
    state: dict[str, Array] = {}
    for spec in bound.specs:
        own = bound.by_name[spec.name][1]
        if own in arrays:
            continue
        if own not in feedback:
            raise _bad_inputs(f"input {spec.name!r} is missing", bound)
        state[own] = zeros(spec)
    if splits and len({array.shape[0] for array in arrays.values()}) != 1:
        raise _bad_inputs("the inputs have different numbers of rows", bound)
    return _Inputs(arrays, rows, splits, reals, state)


def _is_rows_for_one(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    return len(shape) > 0 and spec.shape[:1] == (1,) and shape[0] > 1


def _bad_inputs(fault: str, bound: Bindings) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, f"{fault}; the model takes {bound.names()}")


def _take_turn(
    running: Running, signature: str | None, inputs: _Inputs, terms: Terms, step: SequenceStep | None
) -> Turn[dict[str, Array]]:
    if running.sequences is not None and step is not None:
        return _take_step(running, running.sequences, signature, inputs, terms, step)

    return running.lane.run(_Work(inputs, signature, terms), terms)


class _Work:
    """One request's run on whichever session it gets, see :class:`~pocketserve.engine.batching.BatchWork`."""

    __slots__ = ("arrays", "inputs", "signature", "terms")

    def __init__(self, inputs: _Inputs, signature: str | None, terms: Terms) -> None:
        self.inputs = inputs
        self.signature = signature
        self.terms = terms
        self.arrays = None if inputs.row_by_row or inputs.state else inputs.arrays

    def __call__(self, session: Session) -> dict[str, Array]:
        inputs = self.inputs
        if inputs.row_by_row:
            return _run_rows(session, inputs, self.signature, self.terms)
        _forget(session)
        return _run(session, {**inputs.state, **inputs.arrays} if inputs.state else inputs.arrays, self.signature)


class _PlainWork:
    """A prepared request's run on whichever session it gets, as :class:`_Work`; there is nothing to forget."""

    __slots__ = ("arrays", "signature")

    def __init__(self, arrays: dict[str, Array], signature: str | None) -> None:
        self.arrays = arrays
        self.signature = signature

    def __call__(self, session: Session) -> dict[str, Array]:
        return _run(session, self.arrays, self.signature)


def _take_step(
    running: Running,
    table: SequenceTable,
    signature: str | None,
    inputs: _Inputs,
    terms: Terms,
    step: SequenceStep,
) -> Turn[dict[str, Array]]:
    """One step of a sequence: with the state of the step before, and kept for the one behind."""
    begun = failed = False

    def work(session: Session) -> dict[str, Array]:
        nonlocal begun
        begun = True
        outputs = _run(session, {**inputs.state, **sequence.state, **inputs.arrays}, signature)
        sequence.state = {taken: outputs[given] for taken, given in running.model.feedback.items()}
        return outputs

    if signature is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "sequences work with the default signature only")
    sequence, ticket = table.enter(step)
    try:
        with sequence.hold(ticket, terms):
            table.prepare(sequence)
            return (sequence.lane or running.lane).run(work, terms)
    except BaseException:
        failed = begun
        raise
    finally:
        table.leave(step, sequence, failed=failed)


def _forget(session: Session) -> None:
    """A request of no sequence must not hear what an earlier one said."""
    # Not isinstance(session, ResettableSession): asking a protocol costs a third of a whole request.
    reset = getattr(session, "reset", None)
    if reset is not None:
        reset()


def _check_wanted(terms: Terms) -> None:
    """Between two runs of one request: a single run cannot be stopped, but a thousand need not all be made."""
    if terms.cancellation is not None and terms.cancellation.cancelled:
        raise ApiError(ErrorCode.CANCELLED, "the request was cancelled by its caller between two runs of the model")


def _run_rows(session: Session, inputs: _Inputs, signature: str | None, terms: Terms) -> dict[str, Array]:
    runs = []
    for row in range(inputs.rows):
        _check_wanted(terms)
        _forget(session)
        one = {name: array[row : row + 1] for name, array in inputs.arrays.items()}
        runs.append(_run(session, {**inputs.state, **one}, signature))
    return {name: np.concatenate([np.atleast_1d(run[name]) for run in runs]) for name in runs[0]}


def _run(session: Session, arrays: Mapping[str, Array], signature: str | None) -> dict[str, Array]:
    try:
        return session.run(arrays, signature)
    except ApiError:
        raise
    except ValueError as error:  # runtimes raise it where the input's shape or content is at fault
        raise ApiError(ErrorCode.INVALID_TENSOR, f"the model cannot take this input: {str(error)[:500]}") from error
    except Exception as error:
        detail = f"{type(error).__name__}: {str(error).strip()[:500]}"
        raise ApiError(ErrorCode.INFERENCE_FAILED, f"the model failed on this input: {detail}") from error


def _output(
    asked: RequestedOutput, spec: TensorSpec, array: Array, reals: bool, labels: Sequence[str], batched: bool
) -> Tensor:
    if reals and spec.quantization is not None:
        array = dequantize(array, spec)
    if asked.classification:
        return _classes(asked, array, spec, labels, batched)
    datatype = "BF16" if spec.datatype == "BF16" else None
    return to_tensor(asked.name, array, datatype)


def _classes(asked: RequestedOutput, array: Array, spec: TensorSpec, labels: Sequence[str], batched: bool) -> Tensor:
    """Triton's classification extension: BYTES ``value:index[:label]``, best first, ties in order, NaN last."""
    if array.dtype.kind not in "iuf":
        raise invalid(f"output {asked.name!r}", f"classification needs numbers, not {spec.datatype}")
    stacked = array if batched and array.ndim > 1 else array[np.newaxis]
    rows = stacked.reshape(stacked.shape[0], math.prod(stacked.shape[1:]))  # -1 fails on no rows
    count = min(asked.classification, rows.shape[1])
    texts = [_class_text(row, index, labels) for row in rows for index in _best(row)[:count]]
    shape = (rows.shape[0], count) if batched and array.ndim > 1 else (count,)
    return Tensor(asked.name, "BYTES", shape, texts)


def _best(row: Array) -> list[int]:
    # Sorting the negated double keeps ties in order of the class and puts NaN last.
    order: list[int] = np.argsort(-row.astype(np.float64), kind="stable").tolist()
    return order


def _class_text(row: Array, index: int, labels: Sequence[str]) -> bytes:
    value = f"{float(row[index]):.6f}" if row.dtype.kind == "f" else str(int(row[index]))
    label = f":{label_of(labels, index)}" if index < len(labels) else ""
    return f"{value}:{index}{label}".encode()


def _kept_datatype(bound: Bindings, name: str, array: Array) -> str | None:
    spec = bound.by_name[name][0]
    return "BF16" if spec.datatype == "BF16" and array.dtype == np.uint16 else None


def _timing(turn: Turn[Any], began: int, ready: int, infer_end: int, steps: Sequence[_Inputs]) -> Timing:
    return Timing(
        queue_ns=turn.queue_ns,
        input_ns=ready - began,
        infer_ns=turn.run_ns,
        output_ns=time.perf_counter_ns() - infer_end,
        rows=sum(step.rows for step in steps),
        executions=_executions(turn, steps),
        batch=turn.batch_rows,
    )


def _executions(turn: Turn[Any], steps: Sequence[_Inputs]) -> int:
    """Runs of the model on this request's account; the lane counts those of a single plain run."""
    if len(steps) == 1 and not steps[0].row_by_row:
        return turn.executions
    return sum(step.rows if step.row_by_row else 1 for step in steps)
