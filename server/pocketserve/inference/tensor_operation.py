"""Run a request whose inputs are tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.inference.compile import keep_compiled
from pocketserve.inference.inputs import (
    BoundOutput,
    Inputs,
    collect,
    run_inputs,
    run_session,
    step_of,
)
from pocketserve.inference.payload import TensorPayload
from pocketserve.runtimes.base import Session
from pocketserve.tasks.base import Arrays
from pocketserve.tasks.labels import label_of
from pocketserve.tensors import Array, dequantize, to_tensor
from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import (
    EncodedBody,
    InferRequest,
    InferResponse,
    RequestedOutput,
    encode_infer_response,
    raw_input,
)
from pocketserve_wire.tensor import invalid

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence
    from pocketserve.engine.lifecycle.sequences import SequenceStep

NO_INPUTS = Inputs({}, 0, False, False, {})
"""The inputs of a request that only ends a sequence."""


class TensorOperation:
    """A tensor request, see :class:`~pocketserve.inference.operations.Operation`.

    Args:
        encoded: respond with an EncodedBody instead of an InferResponse.

    Raises:
        ApiError: the request is invalid.
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
        request = payload.request
        self._handle = handle
        self._request = request
        self._options = options
        self._encoded = encoded
        self.signature = signature_of(request, handle)
        self._bindings, output_bindings = handle.model.entry_points[self.signature]
        tensors = self._read_tensors(request)
        self.step = self._read_step(request, options)
        self._closes = self.step is not None and self.step.end and not tensors
        self._outputs: list[BoundOutput] = []
        inputs = NO_INPUTS
        if not self._closes:
            self._outputs = requested_outputs(request.outputs, output_bindings)
            state = handle.model.first_state if self.signature is None else {}
            inputs = collect(tensors, self._bindings, payload.row_by_row, state)
        self._inputs = inputs
        self.rows = inputs.rows
        self.executions = inputs.rows if inputs.row_by_row else 0
        self.arrays: Arrays | None = None
        if not (inputs.row_by_row or inputs.state) and self.step is None:
            self.arrays = inputs.arrays

    def _read_step(
        self, request: InferRequest, options: RequestOptions
    ) -> SequenceStep | None:
        """Return the request's step of a sequence, if any.

        Raises:
            ApiError: INVALID_PARAMETER, INVALID_REQUEST.
        """
        if not request.parameters:
            return None
        step = step_of(request.parameters, options.owner)
        has_sequences = self._handle.sequences is not None
        if step is not None and has_sequences and self.signature is not None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "sequences work with the default signature only",
            )
        return step

    def _read_tensors(self, request: InferRequest) -> Sequence[Tensor]:
        """Return the request's inputs, joining columns of a table."""
        self._is_joined = False
        if request.raw is not None:
            return [raw_tensor(request.raw, self._bindings)]
        tensors = request.inputs
        if not tensors or tensors[0].name in self._bindings.by_name:
            return tensors
        # Imported late: few requests send columns.
        from pocketserve.inference.columns import join_columns

        joined = join_columns(tensors, self._bindings, self._handle.model.task)
        self._is_joined = joined is not tensors
        return joined

    def run(self, session: Session, arrays: Arrays | None) -> dict[str, Array]:
        """Run the model, unless the request only ends a sequence."""
        if self._closes:
            return {}
        if self.sequence is not None:
            return self._run_step(session, self.sequence)
        if self._generates:
            # Imported late: few models generate text.
            from pocketserve.inference.generation import complete_tensors

            return complete_tensors(self._handle, self._inputs.arrays, self._options)
        return run_inputs(
            session, self._inputs, self.signature, self._options.cancellation
        )

    def _run_step(self, session: Session, sequence: OpenSequence) -> dict[str, Array]:
        """Run one step of a sequence and keep its state."""
        inputs = self._inputs
        arrays = {**inputs.state, **sequence.state, **inputs.arrays}
        outputs = run_session(session, arrays, self.signature)
        feedback = self._handle.model.feedback
        sequence.state = {name: outputs[output] for name, output in feedback.items()}
        return outputs

    def respond(self, result: Mapping[str, Array]) -> InferResponse | EncodedBody:
        """Return the outputs in the form that the client asked for."""
        model = self._handle.model
        outputs = self._encode_outputs(result)
        response = InferResponse(
            model.entry.name, model.version.name, outputs, id=self._request.id
        )
        if self._can_be_compiled():
            self._keep_compiled()
        if self._encoded:
            return encode_infer_response(response, True)
        return response

    def _encode_outputs(self, result: Mapping[str, Array]) -> list[Tensor]:
        reals = self._inputs.reals
        labels = getattr(self._handle.model.task, "labels", ())
        specs = self._bindings.specs
        batch = specs[0].shape[:1] if specs else ()
        outputs: list[Tensor] = []
        for output in self._outputs:
            array = result[output.session_name]
            outputs.append(output_tensor(output, array, reals, labels, batch))
        return outputs

    @property
    def _generates(self) -> bool:
        return getattr(self._handle.model.task, "generates", False)

    def _can_be_compiled(self) -> bool:
        inputs = self._inputs
        if self._generates:
            return False
        if self._request.template is None or self.step is not None or self._is_joined:
            return False
        return not (inputs.row_by_row or inputs.reals or inputs.state)

    def _keep_compiled(self) -> None:
        template = self._request.template
        assert template is not None
        keep_compiled(
            self._handle,
            template,
            self.signature,
            self._inputs.rows,
            self._bindings,
            self._outputs,
        )


def signature_of(request: InferRequest, handle: ModelHandle) -> str | None:
    """Return the requested entry point; None for the default.

    A model with one entry point ignores the name.

    Raises:
        ApiError: INVALID_PARAMETER for an unknown name.
    """
    name = request.parameters.get("signature_name")
    entry_points = handle.model.entry_points
    if name is None or name == "" or len(entry_points) == 1:
        return None
    if name not in entry_points:
        signatures = [repr(point) for point in entry_points if point is not None]
        names = ", ".join(signatures) or "none"
        raise ApiError(
            ErrorCode.INVALID_PARAMETER,
            f"unknown signature_name {name!r:.80}; the model has {names}",
        )
    return str(name)


def raw_tensor(body: memoryview, bound: Bindings) -> Tensor:
    """Return a body without JSON as the model's only input.

    Raises:
        ApiError: INVALID_REQUEST if the model has several inputs; INVALID_TENSOR if
            the size does not fit.
    """
    count = len(bound.specs)
    if count != 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "a body without JSON works for models with one input; "
            f"this one has {count}: {bound.names()}",
        )
    spec = bound.specs[0]
    return raw_input(body, spec.name, spec.datatype, spec.shape)


def requested_outputs(
    requested: Sequence[RequestedOutput], bound: Bindings
) -> list[BoundOutput]:
    """Return the outputs to send: those requested, by default all.

    Raises:
        ApiError: INVALID_REQUEST for an unknown output.
    """
    outputs: list[BoundOutput] = []
    if not requested:
        for default in bound.specs:
            spec, session_name = bound.by_name[default.name]
            outputs.append(
                BoundOutput(RequestedOutput(default.name), spec, session_name)
            )
        return outputs
    for output in requested:
        if output.name not in bound.by_name:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"unexpected inference output {output.name!r}; "
                f"the model has {bound.names()}",
            )
        spec, session_name = bound.by_name[output.name]
        outputs.append(BoundOutput(output, spec, session_name))
    return outputs


def output_tensor(
    output: BoundOutput,
    array: Array,
    reals: bool,
    labels: Sequence[str],
    batch: tuple[int, ...],
) -> Tensor:
    """Return one output in the form that the client asked for.

    Args:
        reals: the client sent real numbers to a quantized model, and gets real numbers.
        batch: the first dimension of the model's first input, as a tuple; empty for a
            scalar.

    Raises:
        ApiError: INVALID_TENSOR if classes of a non-numeric output are requested.
    """
    requested, spec = output.requested, output.spec
    if reals and spec.quantization is not None:
        array = dequantize(array, spec)
    if requested.classification:
        # Count rows as the model's configuration does, see api/model_config.py.
        is_batch = batch == (-1,) or batch == (1,) == array.shape[:1]
        return _classes(output, array, labels, is_batch and array.ndim > 1)
    datatype = "BF16" if spec.datatype == "BF16" else None
    return to_tensor(requested.name, array, datatype)


def _classes(
    output: BoundOutput, array: Array, labels: Sequence[str], batched: bool
) -> Tensor:
    """Return BYTES ``value:index[:label]``, best first; ties in order, NaN last."""
    name = output.requested.name
    if array.dtype.kind not in "iuf":
        fault = f"classification needs numbers, not {output.spec.datatype}"
        raise invalid(f"output {name!r}", fault)
    rows = _as_rows(array if batched else array[np.newaxis])
    count = min(output.requested.classification, rows.shape[1])
    texts = []
    for row in rows:
        texts.extend(_best_classes(row, count, labels))
    shape = (rows.shape[0], count) if batched else (count,)
    return Tensor(name, "BYTES", shape, texts)


def _as_rows(array: Array) -> Array:
    # math.prod and not -1, which fails without rows.
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))


def _best_classes(row: Array, count: int, labels: Sequence[str]) -> list[bytes]:
    # Sorting the negated double keeps ties in class order and puts NaN last.
    order = np.argsort(-row.astype(np.float64), kind="stable")
    return [_class_text(row, index, labels) for index in order[:count].tolist()]


def _class_text(row: Array, index: int, labels: Sequence[str]) -> bytes:
    is_real = row.dtype.kind == "f"
    value = f"{float(row[index]):.6f}" if is_real else str(int(row[index]))
    label = ""
    if index < len(labels):
        label = f":{label_of(labels, index)}"
    return f"{value}:{index}{label}".encode()
