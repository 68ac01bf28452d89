"""One request on one loaded model: check the tensors, take a turn, run, translate back.

What goes in is checked in `validate.py`, and run in `execute.py`; what comes out is translated here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import RunResult
from pocketserve.engine.statistics import Timing
from pocketserve.inference.compile import CompiledRequest, remember
from pocketserve.inference.execute import PlainWork, run_in_turn, take_runs
from pocketserve.inference.validate import Inputs, collect, raw_tensor, signature_of, wanted_outputs
from pocketserve.tasks.base import NO_HINTS, Annotator, Answer, AnswerOptions, Arrays, Detailed, Hints, OwnTensors, Task
from pocketserve.tasks.cancellation import BytePool, cancellation_scope
from pocketserve.tasks.labels import label_of
from pocketserve.tensors import Array, TensorSpec, dequantize, to_tensor
from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import (
    EncodedBody,
    InferRequest,
    InferResponse,
    RequestedOutput,
    RequestTemplate,
    encode_infer_response,
)
from pocketserve_wire.tensor import invalid

SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})


class Prediction(NamedTuple):
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
    more: Mapping[str, Any] = {}
    picture: bytes | None = None


def run_tensors(
    running: ModelHandle, request: InferRequest, terms: RequestOptions, row_by_row: bool = False
) -> tuple[InferResponse, Timing]:
    """Answer a tensor request.

    Args:
        row_by_row: let a model that is fixed to one row answer several, one run after the other in one turn.

    Raises:
        ApiError: for every fault of the request; INFERENCE_FAILED when the framework raises.
    """
    began = time.perf_counter_ns()
    model = running.model
    signature = signature_of(request, running)
    bound_in, bound_out = model.entry_points[signature]
    tensors = request.inputs if request.raw is None else [raw_tensor(request.raw, bound_in)]
    wanted = wanted_outputs(request.outputs, bound_out)
    inputs = collect(tensors, bound_in, row_by_row, model.first_state if signature is None else {})
    step = None
    if not SEQUENCE_PARAMETERS.isdisjoint(request.parameters):
        from pocketserve.engine.lifecycle.sequences import read_step  # late: few models keep state

        step = read_step(request.parameters)
    ready = time.perf_counter_ns()
    turn = run_in_turn(running, signature, inputs, terms, step)
    infer_end = time.perf_counter_ns()
    labels = getattr(model.task, "labels", ())
    batch = bound_in.specs[0].shape[:1] if bound_in.specs else ()
    outputs = [_output(asked, spec, turn.result[own], inputs.reals, labels, batch) for asked, (spec, own) in wanted]
    timing = _timing(turn, began, ready, infer_end, [inputs])
    if request.plan is not None and step is None and not (inputs.row_by_row or inputs.reals or inputs.state):
        remember(running, request.plan, signature, inputs.rows, bound_in, wanted)
    return InferResponse(model.entry.name, model.version.name, outputs, id=request.id), timing


def run_compiled(
    running: ModelHandle, asked: tuple[RequestTemplate, memoryview], terms: RequestOptions
) -> tuple[EncodedBody, Timing]:
    """Answer a tensor request whose JSON part is known, with raw tensors only.

    Args:
        asked: the plan of the body, and the body.

    Raises:
        ApiError: as :func:`run_tensors`.
    """
    began = time.perf_counter_ns()
    plan, body = asked
    prepared: CompiledRequest | None = running.prepared.get(plan)
    if prepared is None:
        response, timing = run_tensors(running, plan.read(body), terms)
        return encode_infer_response(response, True), timing
    work = PlainWork(prepared.arrays(body), prepared.signature)
    ready = time.perf_counter_ns()
    turn = running.lane.run(work, terms)
    infer_end = time.perf_counter_ns()
    encoded = prepared.encode(turn.result)
    input_ns, output_ns = ready - began, time.perf_counter_ns() - infer_end
    return encoded, Timing(
        turn.queue_ns, input_ns, turn.run_ns, output_ns, prepared.rows, turn.executions, turn.batch_rows
    )


def run_raw_input(
    running: ModelHandle,
    body: memoryview,
    options: AnswerOptions,
    terms: RequestOptions,
    hints: Hints = NO_HINTS,
    budget: BytePool | None = None,
) -> Prediction:
    """Answer raw input through the model's task.

    Args:
        budget: what decoding takes its memory from; None is without bounds.

    Raises:
        ApiError: INVALID_INPUT and others for a fault of the input; INFERENCE_FAILED when the framework raises.
    """
    began = time.perf_counter_ns()
    model = running.model
    wants_picture = "annotate" in options.values
    if wants_picture and not isinstance(model.task, Annotator):
        raise ApiError(ErrorCode.INVALID_PARAMETER, f"annotate: the task {model.task.name} has no picture to draw on")
    running.lane.refuse_if_full(terms)  # before the picture is decoded, which may cost more than the model
    with cancellation_scope(terms.check, budget):
        prepared = model.task.prepare(body, hints)
    try:
        steps = [_collect_run(running, arrays) for arrays in prepared.runs]
        ready = time.perf_counter_ns()
        turn = take_runs(running, steps, prepared.chained, terms)
    except ApiError as error:
        _blame(model.task, error)
        raise
    infer_end = time.perf_counter_ns()
    runs = [_task_outputs(running, outputs, step.reals) for outputs, step in zip(turn.result, steps, strict=True)]
    try:
        # What a model gives may be no number; tasks leave that out by themselves.
        with np.errstate(all="ignore"), cancellation_scope(terms.check, budget):
            given = model.task.answer(runs, options, prepared.context)
    except (ValueError, TypeError, IndexError, KeyError) as error:
        reason = f"the outputs do not fit the task {model.task.name}: {str(error)[:300]}"
        raise ApiError(ErrorCode.INFERENCE_FAILED, f"{reason}; see its model.toml") from error
    answer, more = (given.entries, given.more) if isinstance(given, Detailed) else (given, {})
    picture = None
    if wants_picture and isinstance(model.task, Annotator):
        with cancellation_scope(terms.check, budget):
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


def _collect_run(running: ModelHandle, arrays: Arrays) -> Inputs:
    model = running.model
    tensors = [to_tensor(name, array, _kept_datatype(model.inputs, name, array)) for name, array in arrays.items()]
    return collect(tensors, model.inputs, row_by_row=True, first_state=model.first_state)


def _task_outputs(running: ModelHandle, result: Mapping[str, Array], reals: bool) -> dict[str, Array]:
    """One run's outputs by the names that callers see; real numbers where real numbers were sent."""
    outputs = {}
    for spec in running.model.outputs.specs:
        array = result[running.model.outputs.by_name[spec.name][1]]
        outputs[spec.name] = dequantize(array, spec) if reals and spec.quantization else array
    return outputs


def _output(
    asked: RequestedOutput, spec: TensorSpec, array: Array, reals: bool, labels: Sequence[str], batch: tuple[int, ...]
) -> Tensor:
    if reals and spec.quantization is not None:
        array = dequantize(array, spec)
    if asked.classification:
        # The rows of the model's configuration, see api/model_config.py.
        batched = array.ndim > 1 and (batch == (-1,) or batch == (1,) == array.shape[:1])
        return _classes(asked, array, spec, labels, batched)
    datatype = "BF16" if spec.datatype == "BF16" else None
    return to_tensor(asked.name, array, datatype)


def _classes(asked: RequestedOutput, array: Array, spec: TensorSpec, labels: Sequence[str], batched: bool) -> Tensor:
    """Triton's classification extension: BYTES ``value:index[:label]``, best first, ties in order, NaN last."""
    if array.dtype.kind not in "iuf":
        raise invalid(f"output {asked.name!r}", f"classification needs numbers, not {spec.datatype}")
    stacked = array if batched else array[np.newaxis]
    rows = stacked.reshape(stacked.shape[0], math.prod(stacked.shape[1:]))  # -1 fails on no rows
    count = min(asked.classification, rows.shape[1])
    texts = [_class_text(row, index, labels) for row in rows for index in _best(row)[:count]]
    shape = (rows.shape[0], count) if batched else (count,)
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


def _timing(turn: RunResult[Any], began: int, ready: int, infer_end: int, steps: Sequence[Inputs]) -> Timing:
    return Timing(
        queue_ns=turn.queue_ns,
        input_ns=ready - began,
        infer_ns=turn.run_ns,
        output_ns=time.perf_counter_ns() - infer_end,
        rows=sum(step.rows for step in steps),
        executions=_executions(turn, steps),
        batch=turn.batch_rows,
    )


def _executions(turn: RunResult[Any], steps: Sequence[Inputs]) -> int:
    """Runs of the model on this request's account; the lane counts those of a single plain run."""
    if len(steps) == 1 and not steps[0].row_by_row:
        return turn.executions
    return sum(step.rows if step.row_by_row else 1 for step in steps)
