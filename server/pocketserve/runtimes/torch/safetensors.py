"""Read the safetensors format: a length, a JSON header, raw tensors.

The format's own library needs a compiler on Termux. Every offset is checked against the
file before it is used. Source: the README of the safetensors repository.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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


class StoredTensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        dtype_name: the format's name of the type.
        array: the data; BF16 as ``uint16``.
    """

    dtype_name: str
    array: Array


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name; their data stays mapped."""
    if path.stat().st_size < 8:  # an empty file can't be mapped
        raise _fault(path, "it is shorter than its 8-byte length field")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return parse_safetensors(path, mapped)


def parse_safetensors(
    path: Path, mapped: bytes | mmap.mmap, max_header: int = MAX_HEADER_BYTES
) -> dict[str, StoredTensor]:
    """Parse a file's content; the path is only for messages."""
    header_size = _header_size(path, mapped, max_header)
    start = 8 + header_size
    header = _read_header(path, mapped[8:start])
    data = memoryview(mapped)[start:]
    tensors = {}
    for name, entry in header.items():
        tensors[name] = _tensor(path, name, entry, data)
    covered = sum(array.nbytes for _, array in tensors.values())
    size = len(data)
    if covered != size:
        raise _fault(
            path, f"its tensors cover {covered} bytes of {size}; is it truncated?"
        )
    _check_overlaps(path, header)
    return tensors


def _check_overlaps(path: Path, header: Mapping[str, Any]) -> None:
    """Raise unless each tensor begins where another ends."""
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    for (_, end), (start, _) in pairwise(spans):
        if end != start:
            raise _fault(path, "its tensors overlap")


def _header_size(path: Path, mapped: bytes | mmap.mmap, maximum: int) -> int:
    """Return the header's size, checked against the file."""
    size = len(mapped)
    if size < 8:
        raise _fault(path, "it is shorter than its 8-byte length field")
    (header_size,) = struct.unpack_from("<Q", mapped)
    if header_size > size - 8:
        raise _fault(
            path,
            f"its header of {header_size} bytes does not fit into the file of {size}; "
            "is it truncated?",
        )
    if header_size > maximum:
        raise _fault(
            path, f"its header has {header_size} bytes, at most {maximum} are read"
        )
    return int(header_size)


def _read_header(path: Path, content: bytes) -> dict[str, Any]:
    """Parse the header; return the tensors' entries by name."""
    try:
        header = strict_json.loads_object(content)
    except ApiError as error:
        # Its text is about a request.
        reason = str(error).removeprefix("failed to parse the request JSON: ")
        reason = reason.replace("the body", "it")
        raise _fault(
            path, f"its header is not JSON: {reason}; copy the file again"
        ) from None
    header.pop("__metadata__", None)
    return header


def _tensor(path: Path, name: str, entry: Any, data: memoryview) -> StoredTensor:
    """Return a tensor on the file's memory; check its entry first."""
    title = f"tensor {name[:80]!r}"
    try:
        dtype_name = entry["dtype"]
        dtype = np.dtype(DTYPES[dtype_name])
        shape = entry["shape"]
        start, end = entry["data_offsets"]
        numbers = [*shape, start, end]
    except (KeyError, TypeError, ValueError):
        raise _fault(path, f"the entry of {title} is not understood") from None
    if not all(map(_is_size, numbers)) or not start <= end <= len(data):
        raise _fault(path, f"{title} lies outside the file; is it truncated?")
    _check_size(path, title, shape, dtype, end - start)
    try:
        array = np.frombuffer(data[start:end], dtype=dtype).reshape(shape)
    except ValueError as error:  # an empty dimension beside one beyond 64 bits
        raise _fault(path, f"{title}: {error}") from None
    return StoredTensor(dtype_name, array)


def _check_size(
    path: Path, title: str, shape: Sequence[int], dtype: np.dtype[Any], size: int
) -> None:
    """Raise unless a tensor's bytes are as many as its shape needs."""
    if len(shape) > MAX_DIMENSIONS:  # the product of more would take hours
        raise _fault(
            path,
            f"{title} has {len(shape)} dimensions, at most {MAX_DIMENSIONS} are read",
        )
    expected = math.prod(shape) * dtype.itemsize
    if expected != size:
        raise _fault(path, f"{title} has {size} bytes, its shape needs {expected}")


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _fault(path: Path, detail: str) -> ModelLoadError:
    return ModelLoadError(f"{path.name} is not a valid safetensors file: {detail}")
