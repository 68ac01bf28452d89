"""Read bodies that contain numbers: JSON documents and ``.npy`` files."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import numpy as np

from pocketserve.tasks.base import invalid_input
from pocketserve.tensors import Array, TensorSpec, datatype_of, quantize, to_array
from pocketserve_wire import DATATYPES, ApiError, Tensor
from pocketserve_wire.limits import MAX_JSON_DEPTH
from pocketserve_wire.strict_json import json_type
from pocketserve_wire.tensor import from_json_values, invalid

NPY_MAGIC = b"\x93NUMPY"
MAX_CONSTANT = 1 << 26  # elements of a fixed input, 256 MiB of FP32
MAX_NPY_HEADER = 1024  # bytes; an array with 32 dimensions needs fewer
_NPY_ITEM = (
    rb"\s*['\"](descr|fortran_order|shape)['\"]\s*:"
    rb"\s*(['\"][<>=|]?[a-zA-Z]{1,12}\d{0,10}(?:\[\w{1,9}\])?['\"]|True|False|\([\d,\s]*\))\s*"
)
_NPY_HEADER = rb"\{" + rb",".join([_NPY_ITEM] * 3) + rb"(?:,\s*)?\}\s*"


def is_npy(body: memoryview) -> bool:
    """Return whether the body is a NumPy array file."""
    return bytes(body[:6]) == NPY_MAGIC


def first_sign(body: memoryview) -> bytes:
    """Return the body's first byte that is no JSON white space."""
    return bytes(body[:256]).lstrip(b" \t\r\n")[:1]


def looks_like_json(body: memoryview) -> bool:
    """Return whether a body begins like JSON."""
    sign = first_sign(body)
    return bool(sign) and sign in b"[{-0123456789"


def read_npy(body: memoryview) -> Array:
    """Read a ``.npy`` file of numbers, booleans or texts.

    The header is matched, not evaluated: NumPy passes it to Python's parser, which logs
    warnings about its content, needs deep stacks, and then allocates the size it claims.
    Source of the format: NumPy's NEP 1.
    """
    try:
        return _npy_array(body)
    except (ValueError, TypeError, KeyError, OverflowError, SyntaxError) as error:
        raise invalid_input(f"the .npy file cannot be read: {error}") from None


def _npy_array(body: memoryview) -> Array:
    header = _npy_header(body)
    if header.dtype.hasobject:
        raise ValueError("it holds Python objects")
    datatype_of(header.dtype)
    if header.dtype.itemsize == 0:  # a few bytes could claim billions of elements
        raise ValueError("its elements have no size")
    content = body[header.end :]
    size = math.prod(header.shape) * header.dtype.itemsize
    if len(content) != size:
        raise ValueError(
            f"its header announces {size} bytes, but {len(content)} follow"
        )
    flat = np.empty(0, header.dtype)
    if size:
        flat = np.frombuffer(content, header.dtype)
    if header.is_fortran_order:
        return np.array(flat.reshape(header.shape, order="F"), order="C")
    return np.array(flat.reshape(header.shape))


class _NpyHeader(NamedTuple):
    """The header of a ``.npy`` file; ``end`` is its end in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran_order: bool
    end: int


def _npy_header(body: memoryview) -> _NpyHeader:
    version = bytes(body[6:8])
    start = 12
    if version == b"\1\0":
        start = 10
    end = start + int.from_bytes(body[8:start], "little")
    match = None
    if end - start <= MAX_NPY_HEADER:
        match = re.fullmatch(_NPY_HEADER, bytes(body[start:end]))
    if version not in (b"\1\0", b"\2\0", b"\3\0") or match is None:
        raise ValueError("its header is damaged, or it is not a plain array")
    groups = match.groups()  # keys and values in turns
    entries = dict(zip(groups[::2], groups[1::2], strict=True))
    dtype = np.dtype(entries[b"descr"][1:-1].decode("ascii"))
    sizes = entries[b"shape"][1:-1].split(b",")
    shape = tuple(int(size) for size in sizes if size.strip())
    return _NpyHeader(dtype, shape, entries[b"fortran_order"] == b"True", end)


def picture_in(array: Array) -> Array | None:
    """Return a picture's pixels as a view, or None.

    A picture is uint8 [height, width] or [height, width, 3 or 4] (grey, RGB, RGBA). A
    single row is none.
    """
    if array.dtype != np.uint8 or 0 in array.shape:
        return None
    if array.ndim == 2 and 1 in array.shape:
        return None
    is_batch = array.ndim == 4 or (array.ndim == 3 and array.shape[2] not in (1, 3, 4))
    if is_batch and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    is_grey = array.ndim == 2
    is_coloured = array.ndim == 3 and array.shape[2] in (3, 4)
    if is_grey or is_coloured:
        return array
    return None


def fit_values(values: Any, spec: TensorSpec) -> Array:
    """Convert JSON values to the spec's datatype; quantised inputs take reals.

    Raises:
        ApiError: INVALID_INPUT or INVALID_TENSOR.
    """
    owner = f"input {spec.name!r}"
    sent, flat = nested(values, owner)
    datatype = DATATYPES["FP32" if spec.quantization else spec.datatype]
    shape = None
    if flat:
        shape = fit_shape(sent, spec)
    if shape is None:
        is_list = isinstance(values, list)
        received = f"JSON of shape {list(sent)}" if is_list else json_type(values)
        raise _misfit(spec, received)
    data = from_json_values(flat, datatype, shape, owner)
    return to_array(Tensor(spec.name, datatype.name, shape, data))


def constant(value: Any, spec: TensorSpec) -> Array:
    """Return a fixed input's value, given as a number or nested lists.

    A number fills the whole input, with open sizes as 1.

    Raises:
        ApiError: INVALID_INPUT or INVALID_TENSOR.
    """
    if isinstance(value, list):
        return _stored(fit_values(value, spec), spec)
    shape = tuple(1 if size < 0 else size for size in spec.shape)
    count = math.prod(shape)
    if count > MAX_CONSTANT:
        raise invalid_input(
            f"the input has {count:,} elements, and a fixed one may have {MAX_CONSTANT:,}"
        )
    single = fit_values([value], spec._replace(shape=(1,), batch=""))
    return _stored(np.full(shape, single[0], single.dtype), spec)


def _stored(array: Array, spec: TensorSpec) -> Array:
    if spec.quantization is not None:
        return quantize(array, spec)
    return array


def fit_array(array: Array, spec: TensorSpec, *, picture: bool = False) -> Array:
    """Convert an array to the spec's datatype and shape.

    Numbers keep their meaning. Integers of 8 and 16 bits are pixels, samples or codes,
    so they don't become reals; only integers of a quantised input's own datatype are its
    codes. For a ``picture``, integers of any size are pixels.
    """
    target = _target_type(array.dtype, spec)
    shape = fit_shape(array.shape, spec)
    are_pixels = picture and array.dtype.kind in "iu" and target.kind == "f"
    if shape is None or are_pixels or not _same_meaning(array.dtype, target, spec):
        raise _array_misfit(array, spec, picture=picture)
    with np.errstate(over="ignore"):
        fitted = array.astype(target, copy=False)
    wrapped = target.kind in "iu" and not np.array_equal(fitted, array)
    overflowed = target.kind == "f" and np.isinf(fitted).sum() > np.isinf(array).sum()
    if wrapped or overflowed:
        raise invalid_input(
            f"input {spec.name!r}: the array holds values that do not fit {spec.datatype}"
        )
    return fitted.reshape(shape)


def _array_misfit(array: Array, spec: TensorSpec, *, picture: bool) -> ApiError:
    advice = ""
    if picture:
        advice = "; send a picture as its file or as UINT8 [height, width, 3]"
    elif array.dtype == np.uint8:
        advice = "; send a picture as its file, or convert the array"
    received = f"{datatype_of(array.dtype)} {list(array.shape)}"
    return _misfit(spec, f"{received}{advice}")


def _target_type(dtype: np.dtype[Any], spec: TensorSpec) -> np.dtype[Any]:
    """Return the type to which an array of an input is converted."""
    target = np.dtype(DATATYPES[spec.datatype].typestr)
    if dtype.kind == "f" and spec.quantization:
        return np.dtype(np.float32)
    if spec.open and not dtype.kind == target.kind == "f":
        return dtype
    return target


def fit_shape(sent: tuple[int, ...], spec: TensorSpec) -> tuple[int, ...] | None:
    """Return the model's shape for numbers of another shape, or None.

    The order of elements stays. A leading batch dimension of 1 may be missing. If the
    model's shape is fixed, any dimension of 1 may. One flat list is read in row-major
    order if at most one dimension is free.
    """
    if spec.open or spec.accepts(sent):
        return sent
    count = math.prod(sent)
    if count and spec.shape[:1] in ((1,), (-1,)) and spec.accepts((1, *sent)):
        return (1, *sent)
    free = spec.shape.count(-1)
    if not free and _without_ones(sent) == _without_ones(spec.shape):
        return spec.shape
    if len(sent) > 1 or not count or free > 1:
        return None
    fixed = math.prod(size for size in spec.shape if size >= 0)
    if not fixed or count % fixed or (count != fixed and not free):
        return None
    return tuple(count // fixed if size < 0 else size for size in spec.shape)


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def nested(values: Any, owner: str) -> tuple[tuple[int, ...], list[Any]]:
    """Flatten nested JSON arrays; return shape and leaves.

    Raises:
        ApiError: INVALID_TENSOR, naming the ``owner``: they are not rectangular.
    """
    shape: list[int] = []
    level = values
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level and len(shape) <= MAX_JSON_DEPTH else None
    leaves = [values]
    for size in shape:
        if not all(isinstance(value, list) and len(value) == size for value in leaves):
            break
        # A long flat list is not copied.
        leaves = leaves[0] if len(leaves) == 1 else _flattened(leaves)
    if any(isinstance(value, list) for value in leaves):
        raise invalid(owner, "the nested arrays are not rectangular")
    return tuple(shape), leaves


def _flattened(lists: list[list[Any]]) -> list[Any]:
    return [item for values in lists for item in values]


def _same_meaning(
    dtype: np.dtype[Any], target: np.dtype[Any], spec: TensorSpec
) -> bool:
    """Return whether numbers of one type mean the same in the other."""
    if dtype == target:
        return True
    if target.kind == "O":
        return dtype.kind in "SU"
    whole = dtype.kind in "iu"
    if spec.datatype == "BF16" or dtype.kind == "b" or (whole and spec.quantization):
        return False
    return np.can_cast(dtype, target, "same_kind") and not (
        whole and target.kind == "f" and dtype.itemsize < 4
    )


def _misfit(spec: TensorSpec, received: str) -> ApiError:
    also = ""
    if spec.quantization:
        also = " or FP32"
    return invalid_input(
        f"input {spec.name!r}: expected {spec.datatype}{also} {list(spec.shape)}, got {received}"
    )
