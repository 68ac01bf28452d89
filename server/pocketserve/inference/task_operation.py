"""Runs of a model's task on raw input."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.inference.inputs import (
    Inputs,
    collect,
    run_inputs,
    run_steps,
    step_of,
)
from pocketserve.inference.payload import (
    BOM,
    URLENCODED,
    Prediction,
    RawInput,
    RawPayload,
)
from pocketserve.runtimes.base import Session
from pocketserve.tasks.base import (
    Annotator,
    Answer,
    Arrays,
    ExtendedAnswer,
    Prepared,
    Task,
    TensorForm,
)
from pocketserve.tasks.cancellation import (
    BytePool,
    cancellation_scope,
    hold_document,
    hold_documents,
)
from pocketserve.tensors import Array, dequantize, to_tensor
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence

MAX_PREPARED_BYTES = 1 << 28
"""Bytes of all tensors of a request with several raw inputs, which wait in memory."""

_MEDIA_STARTS = frozenset(
    (b"{", b"[", b'"', b"d", b"D", b"\xef", b" ", b"\t", b"\r", b"\n")
)
"""First bytes of a body that may not be a media file."""


class PreparedInput(NamedTuple):
    """An input of a task, ready to run.

    Attributes:
        context: passed on to the task's answer.
        chained: its runs are steps of one sequence.
    """

    source: RawInput
    steps: list[Inputs]
    context: Any
    chained: bool


class TaskEntries(NamedTuple):
    """A task's answer to one input.

    Attributes:
        more: further parts of the answer, by name.
    """

    entries: Answer
    more: Mapping[str, Any]


class TaskOperation:
    """A task's request, see :class:`~pocketserve.inference.operations.Operation`.

    Args:
        budget: memory for decoding.

    Raises:
        ApiError: INVALID_INPUT and others if the input is invalid.
    """

    signature: str | None = None
    timed = True
    decodes_late = False
    """Whether inputs are decoded when their turn comes, as large ones are."""

    prepare_ns = 0
    sequence: OpenSequence | None = None

    def __init__(
        self,
        handle: ModelHandle,
        payload: RawPayload,
        options: RequestOptions,
        budget: BytePool | None,
    ) -> None:
        self._handle = handle
        self._payload = payload
        self._options = options
        self._budget = budget
        self._answer_options = payload.options
        self._is_list = False
        self._inputs: list[PreparedInput] = []
        self.arrays: Arrays | None = None
        self.rows = 1
        self.executions = 0
        parameters = payload.parameters
        self.step = step_of(parameters, options.owner) if parameters else None
        if "annotate" in payload.options.values:
            self._check_annotation()
        # A newer request of a stream may replace this one while it waits.
        self._is_deferred = self.step is None and (
            self.decodes_late or bool(options.stream)
        )
        if not self._is_deferred:
            # Decoding may take longer than the model.
            handle.queue.check_room(options.rank, options.stream)
            self._prepare()

    def _check_annotation(self) -> None:
        """Raise if the task cannot draw on a picture."""
        task = self._handle.model.task
        if not isinstance(task, Annotator):
            raise ApiError(
                ErrorCode.INVALID_PARAMETER,
                f"annotate: the task {task.name} has no picture to draw on",
            )

    def _prepare(self) -> None:
        """Decode the input."""
        payload = self._payload
        media = getattr(self._handle.model.task, "media", "")
        if is_direct_input(payload, media):
            sources: Sequence[RawInput] = [RawInput(payload.body, payload.hints)]
        else:
            sources = self._read_sources()
        self._inputs = self._prepare_inputs(sources)
        steps: list[Inputs] = []
        for item in self._inputs:
            steps.extend(item.steps)
        self._count_runs(steps)

    def _prepare_inputs(self, sources: Sequence[RawInput]) -> list[PreparedInput]:
        inputs: list[PreparedInput] = []
        size = 0
        for source in sources:
            item = self._prepare_input(source)
            inputs.append(item)
            if len(sources) == 1:
                return inputs
            for step in item.steps:
                size += step.size
            size += getattr(item.context, "nbytes", 0)
            if size > MAX_PREPARED_BYTES:
                raise ApiError(
                    ErrorCode.INVALID_INPUT,
                    "the inputs are together too large for one request; send several requests",
                )
        return inputs

    def _count_runs(self, steps: Sequence[Inputs]) -> None:
        """Set rows and runs, and the inputs if they can be batched.

        Raises:
            ApiError: INVALID_REQUEST for a step of a sequence that takes several runs.
        """
        is_plain = len(steps) == 1 and not steps[0].row_by_row
        if self.step is not None and not is_plain:
            self._check_chain()
        self.rows = 0
        runs = 0
        for step in steps:
            self.rows += step.rows
            runs += step.rows if step.row_by_row else 1
        self.executions = 0 if is_plain else runs
        if is_plain and not steps[0].state and self.step is None:
            self.arrays = steps[0].arrays

    def _check_chain(self) -> None:
        """Raise if a step of a sequence takes several independent runs."""
        is_chain = len(self._inputs) == 1 and self._inputs[0].chained
        if not is_chain and self._handle.sequences is not None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "a step of a sequence is one run of the model, and this input "
                "takes several; send it in parts",
            )

    def _read_sources(self) -> Sequence[RawInput]:
        """Return the inputs of a body in another program's format.

        Its fields may set parameters.
        """
        # Imported late: few requests need it.
        from pocketserve.inference.raw_input import read_raw_inputs

        model = self._handle.model
        names = [spec.name for spec in model.inputs.specs]
        with self._scope():
            inputs, options, is_list = read_raw_inputs(self._payload, model.task, names)
        self._answer_options = options
        self._is_list = is_list
        if "annotate" in options.values:
            self._check_annotation()
            if is_list:
                raise ApiError(
                    ErrorCode.INVALID_PARAMETER,
                    "annotate takes one picture in a request, not several",
                )
        return inputs

    def _prepare_input(self, source: RawInput) -> PreparedInput:
        task = self._handle.model.task
        with self._scope():
            if source.tensors:
                prepared = _prepare_tensors(task, source)
            else:
                hold_document(source.body)
                prepared = task.prepare(source.body, source.hints)
        steps: list[Inputs] = []
        try:
            for arrays in prepared.runs:
                steps.append(self._collect(arrays))
        except ApiError as error:
            _raise_fault_of_task(task, error)
            raise
        return PreparedInput(source, steps, prepared.context, prepared.chained)

    def _scope(self) -> cancellation_scope:
        # A deferred input is decoded while it holds a session. Waiting for memory
        # would block all other requests of the model.
        return cancellation_scope(
            self._options.check, self._budget, waits=not self._is_deferred
        )

    def _collect(self, arrays: Arrays) -> Inputs:
        model = self._handle.model
        bindings = model.inputs
        tensors = []
        for name, array in arrays.items():
            spec, _ = bindings.by_name[name]
            is_bf16 = spec.datatype == "BF16" and array.dtype == np.uint16
            tensors.append(to_tensor(name, array, "BF16" if is_bf16 else None))
        return collect(tensors, bindings, True, model.first_state)

    def run(self, session: Session, arrays: Arrays | None) -> Any:
        """Run the model; return one run's outputs, or a list of several runs'."""
        self.prepare_deferred()
        inputs = self._inputs
        try:
            if len(inputs) == 1 and len(inputs[0].steps) == 1 and self.sequence is None:
                cancellation = self._options.cancellation
                return run_inputs(session, inputs[0].steps[0], None, cancellation)
            return self._run_steps(session)
        except ApiError as error:
            _raise_fault_of_task(self._handle.model.task, error)
            raise

    def prepare_deferred(self) -> None:
        """Decode the input if that was deferred until the run."""
        if not self._is_deferred:
            return
        began = time.perf_counter_ns()
        self._prepare()
        self.prepare_ns = time.perf_counter_ns() - began
        self._options.check()  # the queue's own check was before the decoding

    def _run_steps(self, session: Session) -> list[dict[str, Array]]:
        results: list[dict[str, Array]] = []
        for item in self._inputs:
            is_chain = item.chained or self.sequence is not None
            feedback = self._handle.model.feedback if is_chain else None
            results += run_steps(
                session,
                item.steps,
                feedback,
                self._options.cancellation,
                self.sequence,
            )
        return results

    def respond(self, result: Any) -> Any:
        """Return the labelled answer, with an annotated picture if requested."""
        results = result if isinstance(result, list) else [result]
        if self._is_list:
            return self._respond_to_list(results)
        item = self._inputs[0]
        runs = self._task_outputs(results, item)
        entries, more = self._answer(runs, item)
        picture = None
        mode = self._answer_options.values.get("annotate")
        if mode is not None:
            picture = self._annotate(runs, entries)
        if picture is not None and mode == "both":
            more = {**more, "picture": _base64(picture)}
            picture = None
        return self._prediction(entries, more, picture, [entries])

    def _respond_to_list(self, results: Sequence[Mapping[str, Array]]) -> Prediction:
        per_input: list[Answer] = []
        extras: dict[str, list[Any]] = {}
        rest = list(results)
        for item in self._inputs:
            count = len(item.steps)
            runs = self._task_outputs(rest[:count], item)
            del rest[:count]
            entries, more = self._answer(runs, item)
            per_input.append(entries)
            append_values(extras, more)
        return self._prediction(numbered(per_input), extras, None, per_input)

    def _prediction(
        self,
        entries: Answer,
        more: Mapping[str, Any],
        picture: bytes | None,
        per_input: Sequence[Answer],
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
        """Return the outputs of an input's runs by public name.

        Where real numbers were sent, real numbers are returned.
        """
        bindings = self._handle.model.outputs
        runs: list[Arrays] = []
        for result, step in zip(results, item.steps, strict=True):
            outputs: dict[str, Array] = {}
            for spec in bindings.specs:
                array = result[bindings.by_name[spec.name][1]]
                if step.reals and spec.quantization:
                    array = dequantize(array, spec)
                outputs[spec.name] = array
            runs.append(outputs)
        return runs

    def _answer(self, runs: list[Arrays], item: PreparedInput) -> TaskEntries:
        """Return the task's answer to one input."""
        task = self._handle.model.task
        try:
            # Outputs may hold NaN, which tasks leave out themselves.
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
        if isinstance(answer, ExtendedAnswer):
            return TaskEntries(answer.entries, answer.more)
        return TaskEntries(answer, {})

    def _annotate(self, runs: list[Arrays], entries: Answer) -> bytes | None:
        """Return the annotated picture, if the task can draw."""
        task = self._handle.model.task
        if not isinstance(task, Annotator):
            return None
        item = self._inputs[0]
        source = item.source
        with cancellation_scope(self._options.check, self._budget):
            return task.annotate(source.body, source.hints, runs, entries, item.context)


def is_direct_input(payload: RawPayload, media: str) -> bool:
    """Return whether the body is the task's input without any encoding.

    Args:
        media: ``picture`` or ``sound``; empty for other tasks.
    """
    if payload.parts:
        return False
    start = bytes(payload.body[:1])
    content_type = payload.hints.content_type[: len(URLENCODED)].lower()
    if media:
        is_text = content_type == URLENCODED or content_type.startswith("text/")
        return start not in _MEDIA_STARTS and not is_text
    if content_type == URLENCODED or content_type.startswith("text/"):
        return False
    return start != BOM[:1]


def append_values(lists: dict[str, list[Any]], values: Mapping[str, Any]) -> None:
    """Append values to the lists of the same names."""
    for name, value in values.items():
        lists.setdefault(name, []).append(value)


def _base64(content: bytes) -> str:
    # Imported late: few requests ask for a picture.
    import base64

    return base64.b64encode(content).decode()


def _prepare_tensors(task: Task, source: RawInput) -> Prepared:
    if not isinstance(task, TensorForm):
        raise ApiError(
            ErrorCode.INVALID_INPUT, "this model takes no form with several fields"
        )
    hold_documents(source.tensors.values())
    return task.prepare_tensors(source.tensors)


def numbered(per_input: Sequence[Answer]) -> Answer:
    """Return the entries of all inputs, with input numbers from 0."""
    entries: Answer = []
    for number, answer in enumerate(per_input):
        for entry in answer:
            entries.append({**entry, "input": number})
    return entries


def _raise_fault_of_task(task: Task, error: ApiError) -> None:
    """Raise INFERENCE_FAILED if code in the model's folder made bad tensors.

    The client is not at fault then.
    """
    source = getattr(task, "source", "")
    if source and error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_TENSOR):
        reason = (
            f"{source} returned input that the model does not accept: {error.message}"
        )
        raise ApiError(ErrorCode.INFERENCE_FAILED, reason) from error
