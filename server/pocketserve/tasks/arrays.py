"""Raw bodies that already hold numbers: JSON documents and ``.npy`` files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from pocketserve.tasks.base import invalid_input
from pocketserve.tensors import Array, TensorSpec, datatype_of, to_array
from pocketserve.wording import counted
from pocketserve_wire import DATATYPES, Tensor, strict_json
from pocketserve_wire.tensor import from_json_values

NPY_MAGIC = b"\x93NUMPY"


def is_npy(body: memoryview) -> bool:
    """Whether the body is a NumPy array file."""
    return bytes(body[:6]) == NPY_MAGIC


def looks_like_json(body: memoryview) -> bool:
    """Whether the first visible byte starts a JSON array, object or number."""
    return bytes(body[:256]).lstrip(b" \t\r\n")[:1] in (*[bytes([c]) for c in b"[{-0123456789"],)


def read_npy(body: memoryview) -> Array:
    """Read a ``.npy`` file; pickled objects are refused.

    Raises:
        ApiError: INVALID_INPUT.
    """
    try:
        array: Array = np.load(io.BytesIO(body), allow_pickle=False)
        datatype_of(array.dtype)
        if array.dtype.itemsize == 0:  # a few bytes would stand for billions of elements
            raise ValueError("its elements have no size")
    except Exception as error:  # NumPy's header reader lets through whatever Python's parser raises
        raise invalid_input(f"the .npy file cannot be read: {str(error)[:200] or type(error).__name__}") from None
    return np.asarray(array, order="C")


def read_values(body: memoryview, spec: TensorSpec) -> Array:
    """One input's values from a JSON array, number or ``.npy`` file, shaped to the spec.

    Raises:
        ApiError: INVALID_INPUT or INVALID_TENSOR.
    """
    if is_npy(body):
        return fit_array(read_npy(body), spec)
    return fit_values(strict_json.loads(body), spec)


def fit_values(values: Any, spec: TensorSpec) -> Array:
    """JSON values as an array of the spec's datatype and shape.

    A quantised input takes real numbers. The count decides the size of one variable dimension, the first.

    Raises:
        ApiError: INVALID_INPUT or INVALID_TENSOR.
    """
    listed = values if isinstance(values, list) else [values]
    count = _count(listed)
    datatype = DATATYPES["FP32" if spec.quantization else spec.datatype]
    shape = _resolve(spec, count)
    data = from_json_values(listed, datatype, shape, f"input {spec.name!r}")
    return to_array(Tensor(spec.name, datatype.name, shape, data))


def fit_array(array: Array, spec: TensorSpec) -> Array:
    """An array as the spec's datatype and shape; a missing leading dimension of 1 is added.

    Raises:
        ApiError: INVALID_INPUT.
    """
    wanted = np.dtype(DATATYPES[spec.datatype].typestr)
    real = np.dtype(np.float32)
    if spec.quantization and array.dtype.kind == "f":
        wanted = real
    if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "same_kind"):
        raise invalid_input(f"input {spec.name!r} needs {spec.datatype}, the array holds {array.dtype}")
    shape = array.shape if spec.accepts(array.shape) else _resolve(spec, array.size)
    with np.errstate(over="ignore"):
        fitted = array.astype(wanted, copy=False)
    wrapped = wanted.kind in "iu" and not np.array_equal(fitted, array)
    overflowed = wanted.kind == "f" and np.isinf(fitted).sum() > np.isinf(array).sum()
    if wrapped or overflowed:
        raise invalid_input(f"input {spec.name!r}: the array holds values that do not fit {spec.datatype}")
    return fitted.reshape(shape)


def _resolve(spec: TensorSpec, count: int) -> tuple[int, ...]:
    shape = list(spec.shape)
    variable = [index for index, dim in enumerate(shape) if dim < 0]
    for index in variable[1:]:
        shape[index] = 1
    if variable:
        known = int(np.prod([dim for index, dim in enumerate(shape) if index != variable[0]], dtype=np.int64))
        if known and count and count % known == 0:
            shape[variable[0]] = count // known
        else:
            shape[variable[0]] = 1
    if int(np.prod(shape, dtype=np.int64)) != count:
        raise invalid_input(f"input {spec.name!r} of shape {list(spec.shape)} cannot take {counted(count, 'value')}")
    return tuple(shape)


def _count(values: list[Any]) -> int:
    return sum(_count(value) if isinstance(value, list) else 1 for value in values)
