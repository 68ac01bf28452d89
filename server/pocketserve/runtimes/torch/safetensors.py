"""Reads the safetensors format: an 8-byte little-endian length, a JSON header, raw tensors.

The format's own library needs a compiler on Termux. Every offset is checked against the file before it is used.
Source: the format description in the safetensors repository's README.
"""

from __future__ import annotations

import math
import mmap
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, strict_json

MAX_HEADER_BYTES = 100_000_000  # the bound that the format's own library sets
MAX_DIMENSIONS = 64  # as many as NumPy has

DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


def read_safetensors(path: Path) -> dict[str, tuple[str, Array]]:
    """Return all tensors of a file, mapped: name -> (dtype name of the format, array). BF16 bits are uint16."""
    if path.stat().st_size < 8:  # an empty file can't be mapped
        raise _fault(path, "it is shorter than its 8-byte length field")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return parse_safetensors(path, mapped)


def parse_safetensors(
    path: Path, mapped: bytes | mmap.mmap, max_header: int = MAX_HEADER_BYTES
) -> dict[str, tuple[str, Array]]:
    """Like :func:`read_safetensors`, from memory; the path is for messages."""
    size = len(mapped)
    if size < 8:
        raise _fault(path, "it is shorter than its 8-byte length field")
    (header_size,) = struct.unpack_from("<Q", mapped)
    if header_size > size - 8:
        raise _fault(
            path,
            f"its header of {header_size} bytes does not fit into the file of {size}; is it truncated?",
        )
    if header_size > max_header:
        raise _fault(
            path, f"its header has {header_size} bytes, at most {max_header} are read"
        )
    try:
        header = strict_json.loads_object(mapped[8 : 8 + header_size])
    except ApiError as error:
        # Its text is about a request.
        reason = (
            str(error)
            .removeprefix("failed to parse the request JSON: ")
            .replace("the body", "it")
        )
        raise _fault(
            path, f"its header is no JSON: {reason}; copy the file again"
        ) from None
    data = memoryview(mapped)[8 + header_size :]
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry, data) for name, entry in header.items()}
    covered = sum(array.nbytes for _, array in tensors.values())
    if covered != len(data):
        raise _fault(
            path, f"its tensors cover {covered} bytes of {len(data)}; is it truncated?"
        )
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    if any(end != start for (_, end), (start, _) in pairwise(spans)):
        raise _fault(path, "its tensors overlap")
    return tensors


def _tensor(path: Path, name: str, entry: Any, data: memoryview) -> tuple[str, Array]:
    try:
        dtype_name, shape, (start, end) = (
            entry["dtype"],
            entry["shape"],
            entry["data_offsets"],
        )
        dtype = np.dtype(DTYPES[dtype_name])
        ints = [*shape, start, end]
    except (KeyError, TypeError, ValueError):
        raise _fault(
            path, f"the entry of tensor {name[:80]!r} is not understood"
        ) from None
    if any(
        type(value) is not int or value < 0 for value in ints
    ) or not start <= end <= len(data):
        raise _fault(
            path, f"tensor {name[:80]!r} lies outside the file; is it truncated?"
        )
    if len(shape) > MAX_DIMENSIONS:  # the product of more would take hours
        raise _fault(
            path,
            f"tensor {name[:80]!r} has {len(shape)} dimensions, at most {MAX_DIMENSIONS} are read",
        )
    count = math.prod(shape)
    if count * dtype.itemsize != end - start:
        raise _fault(
            path,
            f"tensor {name[:80]!r} has {end - start} bytes, its shape needs {count * dtype.itemsize}",
        )
    try:
        return dtype_name, np.frombuffer(data[start:end], dtype=dtype).reshape(shape)
    except ValueError as error:  # an empty dimension beside one beyond 64 bits
        raise _fault(path, f"tensor {name[:80]!r}: {error}") from None


def _fault(path: Path, detail: str) -> ModelLoadError:
    return ModelLoadError(f"{path.name} is not a valid safetensors file: {detail}")
