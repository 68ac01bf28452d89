"""Convert NumPy arrays to wire tensors and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pocketserve_wire import DATATYPES, Tensor

Array = npt.NDArray[Any]

_NAMES = {
    np.dtype(kind.typestr): name
    for name, kind in DATATYPES.items()
    if name not in ("BF16", "BYTES")
}


def as_tensor(name: str, value: npt.ArrayLike, datatype: str | None = None) -> Tensor:
    """Convert an array-like value to a tensor; strings and bytes become BYTES.

    Args:
        datatype: ``BF16`` for arrays of another dtype: floats are rounded to the
            nearest value, uint16 elements are the bits.

    Raises:
        TypeError: the protocol has no datatype for the elements, or they cannot be
            converted to ``datatype``.
    """
    array = np.asarray(value)
    native = _NAMES.get(array.dtype) if datatype is None else None
    if native is not None:
        return _of_memory(name, native, array, array)
    if datatype is not None or array.dtype.name == "bfloat16":  # ml_dtypes' name
        bits = _bfloat16_bits(name, array, datatype or "BF16")
        return _of_memory(name, "BF16", array, bits)
    if array.dtype.kind in "OSU":
        elements = list(map(_bytes_of, array.reshape(-1).tolist()))
        return Tensor(name, "BYTES", array.shape, elements)
    datatype = _NAMES.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise TypeError(
            f"input {name!r}: the protocol has no datatype for {array.dtype}"
        )
    return _of_memory(name, datatype, array, array.astype(DATATYPES[datatype].typestr))


def _bytes_of(item: object) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def _of_memory(name: str, datatype: str, array: Array, elements: Array) -> Tensor:
    """Return a tensor that shares the elements' memory if possible."""
    flat = np.ascontiguousarray(elements).reshape(-1)
    return Tensor(name, datatype, array.shape, flat.view(np.uint8).data)


def _bfloat16_bits(name: str, array: Array, datatype: str) -> Array:
    """Return the upper halves of floats, rounded to nearest even; NaN stays NaN."""
    if datatype == "BF16" and array.dtype.name == "bfloat16":
        return array.view("<u2")
    if datatype == "BF16" and (array.dtype.kind, array.itemsize) == ("u", 2):
        return array.astype("<u2")
    if datatype != "BF16" or array.dtype.kind != "f":
        raise TypeError(
            f"input {name!r}: only BF16 can be named, for floats or uint16, "
            f"not {datatype} for {array.dtype}"
        )
    whole = array.astype(np.float32).view(np.uint32)
    halves = (whole + (0x7FFF + ((whole >> 16) & 1))) >> 16
    return np.where(np.isnan(array), (whole >> 16) | 0x40, halves).astype("<u2")


def as_array(tensor: Tensor) -> Array:
    """Return an array that shares a tensor's memory.

    BF16 is widened to float32; BYTES has dtype ``object``.
    """
    if not isinstance(tensor.data, memoryview):
        array = np.empty(len(tensor.data), dtype=object)
        array[:] = tensor.data
        return array.reshape(tensor.shape)
    array = np.asarray(tensor)
    if tensor.datatype == "BF16":  # the upper half of a float32
        return np.asarray(np.left_shift(array, 16, dtype=np.uint32)).view(np.float32)
    return array
