"""Pass arrays by name in the frames between a process and its child."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pocketserve.child.frames import FrameError
from pocketserve.tensors import Array

MAX_DIMENSIONS: Final = 64
MAX_HEADER_BYTES: Final = 1 << 20
MAX_PAYLOAD_BYTES: Final = 1 << 30
"""Limits of frames with arrays."""


class PackedArrays(NamedTuple):
    """Arrays in a frame.

    Attributes:
        entries: for the header: each array's name, dtype and shape.
        payload: their bytes, one array after the other.
    """

    entries: list[dict[str, Any]]
    payload: list[memoryview]


def pack_arrays(arrays: Mapping[str, Array]) -> PackedArrays:
    """Describe arrays of numbers for a frame; contiguous ones aren't copied."""
    packed = PackedArrays([], [])
    for name, array in arrays.items():
        array = np.ascontiguousarray(array)
        entry = {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
        packed.entries.append(entry)
        packed.payload.append(array.reshape(-1).view(np.uint8).data)
    return packed


def unpack_arrays(
    entries: Sequence[Mapping[str, Any]], payload: bytearray
) -> dict[str, Array]:
    """Return the arrays of a frame, which share its payload.

    Raises:
        FrameError: entries and payload don't fit each other.
    """
    arrays: dict[str, Array] = {}
    start = 0
    for entry in entries:
        try:
            dtype = np.dtype(str(entry["dtype"]))
            shape = [int(size) for size in entry["shape"]]
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError(f"an array is not described: {error}") from error
        if dtype.kind not in "biuf" or len(shape) > MAX_DIMENSIONS:
            raise FrameError(f"an array has the type {dtype} and shape {shape}")
        count = math.prod(shape)
        end = start + count * dtype.itemsize
        if min(shape, default=0) < 0 or end > len(payload):
            raise FrameError(f"an array of shape {shape} is not in the frame")
        flat: Array = np.frombuffer(payload, dtype, count, start)
        arrays[str(entry["name"])] = flat.reshape(shape)
        start = end
    return arrays
