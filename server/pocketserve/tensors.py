"""Tensors as NumPy arrays, and specs of inputs and outputs.

NumPy has no BF16: such arrays have the 16 bits as ``uint16``, and code that computes
with them converts them first. BYTES arrays have dtype ``object`` and ``bytes`` elements.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pocketserve_wire import DATATYPES, Tensor
from pocketserve_wire.tensor import invalid

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    Array = NDArray[Any]
else:
    Array = np.ndarray  # at run time: importing numpy's types takes a millisecond

_PLAIN = (
    frozenset(map(np.dtype, "fdbhilqBHILQ?"))
    if sys.byteorder == "little"
    else frozenset()
)
"""Element types with the wire's memory layout that memoryviews support."""

_BY_DTYPE = {
    np.dtype(kind.typestr): name
    for name, kind in DATATYPES.items()
    if name not in ("BF16", "BYTES")
}


class Quantization(NamedTuple):
    """Affine quantisation of a whole tensor: real = scale * (stored - zero_point)."""

    scale: float
    zero_point: int


class TensorSpec(NamedTuple):
    """An input or output of a model.

    Attributes:
        shape: -1 stands for a dimension of any size.
        quantization: set if the stored integers stand for real numbers.
        aliases: other names of the tensor, such as a signature's.
        open: the file has neither datatype nor rank (TorchScript): any tensor is passed
            on, and datatype and shape are a guess for display.
        batch: the file's name for the free first dimension, empty if it has none.
            Inputs with the same name have the same number of rows.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    quantization: Quantization | None = None
    aliases: tuple[str, ...] = ()
    open: bool = False
    batch: str = ""

    def accepts(self, shape: tuple[int, ...], *, rows_free: bool = False) -> bool:
        """Return whether a shape fits.

        ``rows_free`` ignores the first dimension.
        """
        if len(shape) != len(self.shape):
            return False
        start = 1 if rows_free else 0
        for index in range(start, len(shape)):
            expected = self.shape[index]
            if expected != shape[index] and expected != -1:
                return False
        return True


def datatype_of(dtype: DTypeLike) -> str:
    """Return the protocol's datatype for a NumPy dtype.

    Raises:
        ValueError: when the protocol has none (complex numbers, dates).
    """
    resolved = np.dtype(dtype)
    if resolved.kind in "SOU":
        return "BYTES"
    name = _BY_DTYPE.get(resolved) or _BY_DTYPE.get(resolved.newbyteorder("<"))
    if name is None:
        raise ValueError(f"the protocol has no datatype for {resolved}")
    return name


def to_array(tensor: Tensor) -> Array:
    """Return a tensor as an array, sharing its memory if possible."""
    if isinstance(tensor.data, memoryview):
        return np.frombuffer(
            tensor.data, dtype=DATATYPES[tensor.datatype].typestr
        ).reshape(tensor.shape)
    array = np.empty(len(tensor.data), dtype=object)
    array[:] = tensor.data
    return array.reshape(tensor.shape)


def to_tensor(name: str, array: Array, datatype: str | None = None) -> Tensor:
    """Return an array as a tensor, sharing contiguous memory.

    Args:
        datatype: needed only where the dtype does not tell it (BF16).
    """
    dtype = array.dtype
    kind = datatype or _BY_DTYPE.get(dtype) or datatype_of(dtype)
    if kind == "BYTES":
        return Tensor(name, kind, array.shape, _elements(array))
    memory = plain_memory(array)
    if memory is None:
        plain = np.ascontiguousarray(array, dtype=DATATYPES[kind].typestr)
        memory = plain.reshape(-1).view(np.uint8).data
    return Tensor(name, kind, array.shape, memory)


def _elements(array: Array) -> list[bytes]:
    """Return the elements of a BYTES array."""
    elements: list[bytes] = []
    for item in array.reshape(-1).tolist():
        elements.append(item if isinstance(item, bytes) else str(item).encode())
    return elements


def plain_memory(array: Array) -> memoryview | None:
    """Return an array's memory if it has the wire's form, else None."""
    if array.dtype in _PLAIN and array.size and array.flags.c_contiguous:
        return array.data.cast("B")
    return None


def check_against(spec: TensorSpec, tensor: Tensor, *, rows_free: bool = False) -> None:
    """Raise if a tensor does not fit the model.

    A quantized input may also be sent as FP32; the calling code quantizes it.

    Raises:
        ApiError: INVALID_TENSOR with the input's name, the expected and actual values.
    """
    if spec.open:
        return
    name = f"input {tensor.name!r}"
    floats = spec.quantization is not None and tensor.datatype == "FP32"
    if tensor.datatype != spec.datatype and not floats:
        also = " (or FP32, which is quantised for you)" if spec.quantization else ""
        raise invalid(
            name, f"expected datatype {spec.datatype}{also}, got {tensor.datatype}"
        )
    if not spec.accepts(tensor.shape, rows_free=rows_free):
        raise invalid(
            name, f"expected shape {list(spec.shape)}, got {list(tensor.shape)}"
        )


def zeros(spec: TensorSpec, size: int = 1) -> Array:
    """Return zeros (empty strings) in the shape of a spec.

    Args:
        size: the size of free dimensions, except for the number of rows, which is 1.
    """
    shape = [size if dim < 0 else dim for dim in spec.shape]
    if len(shape) > 1 and spec.shape[0] < 0:
        shape[0] = 1  # rows
    if spec.datatype == "BYTES":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=DATATYPES[spec.datatype].typestr)


def random_array(spec: TensorSpec, random: np.random.Generator) -> Array:
    """Return random numbers or words in the shape of a spec.

    Floats in [0, 1), bytes, 0 or 1. Free dimensions are 1.
    """
    shape = tuple(max(1, size) for size in spec.shape)
    if spec.datatype == "BYTES":
        return np.full(shape, b"word", dtype=object)
    dtype = np.dtype(DATATYPES[spec.datatype].typestr)
    if dtype.kind == "f":
        return random.random(shape, np.float32).astype(dtype)
    if dtype == np.uint8:
        return random.integers(0, 256, shape, np.uint8)
    # Integers may be indices, such as tokens; small ones are always valid.
    return random.integers(0, 2, shape).astype(dtype)


def byte_size(spec: TensorSpec) -> int:
    """Return the bytes of a spec's array, free dimensions being 1.

    Texts are not counted.
    """
    return (
        math.prod(1 if dim < 0 else dim for dim in spec.shape)
        * DATATYPES[spec.datatype].itemsize
    )


def quantize(array: Array, spec: TensorSpec) -> Array:
    """Quantize real numbers: round(x / scale) + zero_point, saturated."""
    assert spec.quantization is not None
    dtype = np.dtype(DATATYPES[spec.datatype].typestr)
    limits = np.iinfo(dtype)
    steps = (
        np.rint(np.nan_to_num(array.astype(np.float64)) / spec.quantization.scale)
        + spec.quantization.zero_point
    )
    stored: Array = np.clip(steps, limits.min, limits.max).astype(dtype)
    return stored


def dequantize(array: Array, spec: TensorSpec) -> Array:
    """Convert stored integers to FP32: scale * (q - zero_point)."""
    assert spec.quantization is not None
    steps = array.astype(np.float32) - np.float32(spec.quantization.zero_point)
    real: Array = steps * np.float32(spec.quantization.scale)
    return real


def spec_metadata(spec: TensorSpec) -> Mapping[str, Any]:
    """Return a spec as the protocol's metadata shows it.

    ``open`` means that the file has neither datatype nor shape: those shown are a guess.
    """
    entry: dict[str, Any] = {
        "name": spec.name,
        "datatype": spec.datatype,
        "shape": list(spec.shape),
    }
    if spec.open:
        entry["parameters"] = {"open": True}
    elif spec.quantization is not None:
        entry["parameters"] = {
            "quantization_scale": spec.quantization.scale,
            "quantization_zero_point": spec.quantization.zero_point,
        }
    return entry
