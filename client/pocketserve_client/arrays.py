"""NumPy arrays to wire tensors and back, on the client's side."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pocketserve_wire import DATATYPES, Tensor

Array = npt.NDArray[Any]

_NAMES = {np.dtype(kind.typestr): name for name, kind in DATATYPES.items() if name not in ("BF16", "BYTES")}


def as_tensor(name: str, value: npt.ArrayLike) -> Tensor:
    """An array, or what NumPy can make one of, as a tensor. Texts and bytes become BYTES.

    Raises:
        TypeError: the protocol has no datatype for the elements.
    """
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        elements = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1).tolist()]
        return Tensor(name, "BYTES", array.shape, elements)
    datatype = _NAMES.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise TypeError(f"input {name!r}: the protocol has no datatype for {array.dtype}")
    contiguous = np.ascontiguousarray(array, dtype=DATATYPES[datatype].typestr).reshape(-1)
    return Tensor(name, datatype, array.shape, contiguous.view(np.uint8).data)


def as_array(tensor: Tensor) -> Array:
    """A tensor as an array that shares its memory. BF16 is widened to float32; BYTES has dtype ``object``."""
    if not isinstance(tensor.data, memoryview):
        array = np.empty(len(tensor.data), dtype=object)
        array[:] = tensor.data
        return array.reshape(tensor.shape)
    array = np.asarray(tensor)
    if tensor.datatype == "BF16":  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
