"""A tensor request against the model that is to answer it: what it sends, checked, and what it wants back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pocketserve.engine.bindings import Bindings
from pocketserve.messages import plural
from pocketserve.tensors import Array, TensorSpec, check_against, quantize, to_array
from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import InferRequest, RequestedOutput, raw_input

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.handle import ModelHandle

Bound = tuple[TensorSpec, str]
"""A tensor as callers see it, and the session's own name for it."""


class Inputs(NamedTuple):
    """The checked inputs of a request.

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

    @property
    def size(self) -> int:
        """Return the bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def signature_of(request: InferRequest, running: ModelHandle) -> str | None:
    """Return the entry point that a request names; None is the default one, and all that a model without names has.

    Raises:
        ApiError: INVALID_PARAMETER when the model has some, and none of this name.
    """
    name = request.parameters.get("signature_name")
    if name is None or name == "" or len(running.model.entry_points) == 1:
        return None
    if name not in running.model.entry_points:
        names = (
            ", ".join(
                repr(point) for point in running.model.entry_points if point is not None
            )
            or "none"
        )
        raise ApiError(
            ErrorCode.INVALID_PARAMETER,
            f"unknown signature_name {name!r:.80}; the model has {names}",
        )
    return str(name)


def raw_tensor(body: memoryview, bound: Bindings) -> Tensor:
    """Return the one input that a body without JSON is.

    Raises:
        ApiError: INVALID_REQUEST when the model has several; INVALID_TENSOR when the size does not fit.
    """
    if len(bound.specs) != 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"a body without JSON works for models with one input; this one has {len(bound.specs)}: {bound.names()}",
        )
    spec = bound.specs[0]
    return raw_input(body, spec.name, spec.datatype, spec.shape)


def requested_outputs(
    requested: Sequence[RequestedOutput], bound: Bindings
) -> list[tuple[RequestedOutput, Bound]]:
    """Return the outputs to answer, in the model's order or in the order asked for.

    Raises:
        ApiError: INVALID_REQUEST for one that the model does not have.
    """
    if not requested:
        return [
            (RequestedOutput(spec.name), bound.by_name[spec.name])
            for spec in bound.specs
        ]
    outputs = []
    for output in requested:
        if output.name not in bound.by_name:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"unexpected inference output {output.name!r}; the model has {bound.names()}",
            )
        outputs.append((output, bound.by_name[output.name]))
    return outputs


def collect(
    tensors: Sequence[Tensor],
    bound: Bindings,
    row_by_row: bool,
    first_state: Mapping[str, Array],
) -> Inputs:
    """Check the tensors against the model and give them the session's names.

    Raises:
        ApiError: INVALID_REQUEST for wrong names; INVALID_TENSOR for wrong datatypes or shapes.
    """
    arrays: dict[str, Array] = {}
    batches: dict[str, Tensor] = {}
    reals = splits = False
    rows = 1
    for tensor in tensors:
        if tensor.name not in bound.by_name:
            raise _bad_inputs(f"unexpected inference input {tensor.name!r}", bound)
        spec, own = bound.by_name[tensor.name]
        if own in arrays:
            raise _bad_inputs(
                f"input {spec.name!r} is given twice under different names", bound
            )
        split = row_by_row and _is_rows_for_one(spec, tensor.shape)
        check_against(spec, tensor, rows_free=split)
        array = to_array(tensor)
        if spec.quantization is not None and tensor.datatype == "FP32":
            array, reals = quantize(array, spec), True
        arrays[own] = array
        if spec.batch and array.ndim:
            first = batches.setdefault(spec.batch, tensor)
            if first.shape[0] != array.shape[0]:
                raise ApiError(
                    ErrorCode.INVALID_TENSOR,
                    f"input {tensor.name!r} has {plural(array.shape[0], 'row')}, input {first.name!r} has "
                    f"{first.shape[0]}; the model has one size for both, {spec.batch!r:.80}",
                )
        splits = splits or split
        if split or (tensor.shape and spec.shape[:1] == (-1,)):
            rows = max(rows, tensor.shape[0])
    state: dict[str, Array] = {}
    for spec in bound.specs:
        own = bound.by_name[spec.name][1]
        if own in arrays:
            continue
        if own not in first_state:
            raise _bad_inputs(f"input {spec.name!r} is missing", bound)
        state[own] = first_state[own].copy()  # a model may write into its inputs
    if splits and len({array.shape[0] for array in arrays.values()}) != 1:
        raise _bad_inputs("the inputs have different numbers of rows", bound)
    return Inputs(arrays, rows, splits, reals, state)


def _is_rows_for_one(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    return len(shape) > 0 and spec.shape[:1] == (1,) and shape[0] > 1


def _bad_inputs(fault: str, bound: Bindings) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST, f"{fault}; the model takes {bound.names()}"
    )
