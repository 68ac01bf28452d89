"""A tensor and its two wire forms: JSON values and raw bytes.

Parsing raises ApiError INVALID_TENSOR with a location.

Data is referenced rather than copied: a raw tensor is a slice of the request body, and
``numpy.asarray(tensor)`` shares that memory through the array interface protocol.
"""

from __future__ import annotations

import array
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .datatypes import DATATYPES, Datatype
from .errors import ApiError, ErrorCode
from .limits import MAX_ELEMENTS, MAX_JSON_DEPTH, MAX_RANK
from .strict_json import is_too_large, json_type

_U32 = struct.Struct("<I")


@dataclass(slots=True)
class Tensor:
    """A named tensor.

    Attributes:
        datatype: a key of :data:`~pocketserve_wire.datatypes.DATATYPES`.
        data: the elements as contiguous little-endian bytes; for BYTES a sequence of
            ``bytes`` objects.
        parameters: the tensor's own parameters, without those of its encoding.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | Sequence[bytes]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Return NumPy's array interface, version 3, which shares the memory.

        BYTES tensors have none.
        """
        if self.datatype == "BYTES":
            raise AttributeError("a BYTES tensor has no buffer; read .data")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": DATATYPES[self.datatype].typestr,
            "data": self.data,
        }


def element_count(shape: Iterable[int]) -> int:
    """Return the number of elements of a shape without variable dimensions."""
    return math.prod(shape)


def parse_shape(value: object, location: str) -> tuple[int, ...]:
    """Check a shape from JSON."""
    if not isinstance(value, list):
        raise invalid(
            location, f"shape must be an array of integers, not {json_type(value)}"
        )
    for dim in value:
        if type(dim) is not int:
            raise invalid(location, "shape must contain integers only")
    if len(value) > MAX_RANK:
        raise invalid(
            location, f"shape has {len(value)} dimensions, the limit is {MAX_RANK}"
        )
    count = 1
    for dim in value:
        if dim < 0:
            raise invalid(
                location,
                f"shape {value!s:.80} has a negative dimension; "
                "a request states every size",
            )
        # Without zeros: NumPy multiplies the other dimensions of an empty array, too.
        count *= dim or 1
    if count > MAX_ELEMENTS:
        raise invalid(
            location, f"shape {value!s:.80} has more than {MAX_ELEMENTS} elements"
        )
    return tuple(value)


def parse_datatype(value: object, location: str) -> Datatype:
    """Return the datatype with this exact name."""
    datatype = DATATYPES.get(value) if isinstance(value, str) else None
    if datatype is None:
        raise invalid(
            location,
            f"invalid datatype {_show(value)}; expected one of {', '.join(DATATYPES)}",
        )
    return datatype


def from_json_values(
    values: object, datatype: Datatype, shape: tuple[int, ...], location: str
) -> memoryview | list[bytes]:
    """Convert a JSON ``data`` member to elements.

    Any nesting is accepted, as in Triton: the array is flattened, and only the number
    of elements must match.

    Raises:
        ApiError: INVALID_TENSOR for a wrong count or type, or a value out of range.
    """
    if not isinstance(values, list):
        raise invalid(location, f"data must be an array, not {json_type(values)}")
    flat: list[Any] = []
    _flatten(values, flat, 1, location)
    count = element_count(shape)
    if len(flat) != count:
        raise invalid(
            location,
            f"shape {list(shape)} needs {count} elements, data has {len(flat)}",
        )
    if datatype.name == "BYTES":
        return _strings(flat, location)
    return memoryview(_numbers(flat, datatype, location)).cast("B")


def from_raw(
    raw: memoryview, datatype: Datatype, shape: tuple[int, ...], location: str
) -> memoryview | list[bytes]:
    """Check a tensor's raw bytes; only BYTES elements are copied."""
    count = element_count(shape)
    if datatype.name == "BYTES":
        return _split_bytes(raw, count, location)
    expected = count * datatype.itemsize
    if raw.nbytes != expected:
        needs = f"{datatype.name} with shape {list(shape)} needs {expected} bytes"
        raise invalid(location, f"unexpected size: {needs}, got {raw.nbytes}")
    if datatype.name == "BOOL" and bytes(raw).translate(None, b"\x00\x01"):
        raise invalid(location, "a BOOL element must be the byte 0 or 1")
    return raw


def to_raw(tensor: Tensor) -> memoryview:
    """Return the raw wire form of a tensor.

    This is the tensor's own memory, or for BYTES each element behind a 4-byte length.
    """
    if isinstance(tensor.data, memoryview):
        return tensor.data
    parts = []
    for element in tensor.data:
        parts += [_U32.pack(len(element)), element]
    return memoryview(b"".join(parts))


def to_json_values(tensor: Tensor) -> list[Any]:
    """Return the elements as a flat JSON array, row-major.

    FP32 values are printed as doubles, so that parsing returns the identical float.

    Raises:
        ApiError: INVALID_REQUEST for FP16 and BF16, which have no JSON form, and for
            BYTES that are not UTF-8.
    """
    if not isinstance(tensor.data, memoryview):
        try:
            return [element.decode("utf-8") for element in tensor.data]
        except UnicodeDecodeError:
            raise _needs_binary(tensor, "contains bytes that are not UTF-8") from None
    if tensor.datatype == "BOOL":
        return [byte != 0 for byte in tensor.data]
    code = DATATYPES[tensor.datatype].array_code
    if code is None:
        raise _needs_binary(tensor, f"is {tensor.datatype}, which JSON cannot express")
    values: array.array[Any] = array.array(code)
    values.frombytes(tensor.data)
    return values.tolist()


def invalid(location: str, detail: str) -> ApiError:
    """Return an INVALID_TENSOR error that starts with the location."""
    return ApiError(ErrorCode.INVALID_TENSOR, f"{location}: {detail}")


def _flatten(values: list[Any], flat: list[Any], depth: int, location: str) -> None:
    """Append the leaves of nested lists to ``flat``."""
    if depth > MAX_JSON_DEPTH:
        raise invalid(location, f"data is nested deeper than {MAX_JSON_DEPTH} arrays")
    if list not in set(map(type, values)):
        flat += values
        return
    for value in values:
        if type(value) is list:
            _flatten(value, flat, depth + 1, location)
        else:
            flat.append(value)


def _strings(flat: list[Any], location: str) -> list[bytes]:
    _check_types(flat, {str}, "strings", "BYTES", location)
    try:
        return [value.encode("utf-8") for value in flat]
    except UnicodeEncodeError:
        raise invalid(
            location,
            "a string contains half of a surrogate pair, which is not Unicode text",
        ) from None


def _numbers(
    flat: list[Any], datatype: Datatype, location: str
) -> bytes | array.array[Any]:
    name, code = datatype.name, datatype.array_code
    if name == "BOOL":
        _check_types(flat, {bool}, "true or false", name, location)
        return bytes(flat)
    if code is None:
        raise invalid(
            location, f"{name} cannot be sent as JSON; send it as binary tensor data"
        )
    if not datatype.is_integer:
        _check_types(flat, {int, float, type(None)}, "numbers", name, location)
        return _floats(flat, code, name, location)
    _check_types(flat, {int}, "integers", name, location)
    try:
        return array.array(code, flat)
    except OverflowError:
        low, high = _integer_range(datatype)
        index = next(i for i, value in enumerate(flat) if not low <= value <= high)
        text = _show(flat[index])
        raise invalid(
            location,
            f"data[{index}] is {text}, but {name} ranges from {low} to {high}",
        ) from None


def _integer_range(datatype: Datatype) -> tuple[int, int]:
    """Return the lowest and highest value of an integer datatype."""
    bits = datatype.itemsize * 8
    if datatype.name.startswith("U"):
        return 0, 2**bits - 1
    half: int = 2 ** (bits - 1)
    return -half, half - 1


def _floats(flat: list[Any], code: str, name: str, location: str) -> array.array[Any]:
    if None in flat:  # both tritonclient and kserve read and write null for NaN
        flat = [math.nan if value is None else value for value in flat]
    try:
        packed = array.array(code, flat)
    except OverflowError:
        raise invalid(location, f"a number is too large for {name}") from None
    if math.inf in packed or -math.inf in packed:
        _reject_overflow(flat, packed, name, location)
    return packed


def _reject_overflow(
    flat: list[Any], packed: array.array[Any], name: str, location: str
) -> None:
    """Raise if a number became infinite, by parsing or by packing."""
    for index, value in enumerate(flat):
        if not math.isinf(packed[index]):
            continue
        if math.isinf(value) and not is_too_large(value):
            continue
        text = "beyond 1.8e308" if math.isinf(value) else repr(value)
        raise invalid(
            location, f"data[{index}] is {text}, which is too large for {name}"
        )


def _check_types(
    flat: list[Any], allowed: set[type], noun: str, datatype: str, location: str
) -> None:
    if set(map(type, flat)) <= allowed:
        return
    index = next(i for i, value in enumerate(flat) if type(value) not in allowed)
    raise invalid(
        location, f"data[{index}] is {_show(flat[index])}, but {datatype} takes {noun}"
    )


def _split_bytes(raw: memoryview, count: int, location: str) -> list[bytes]:
    size = raw.nbytes
    least = count * _U32.size
    if least > size:
        raise invalid(
            location, f"{count} BYTES elements need at least {least} bytes, got {size}"
        )
    elements: list[bytes] = []
    offset = 0
    for index in range(count):
        if offset + _U32.size > size:
            raise invalid(
                location,
                f"BYTES element {index} has no length: the data ends at byte {size}",
            )
        (length,) = _U32.unpack_from(raw, offset)
        offset += _U32.size
        left = size - offset
        if length > left:
            raise invalid(
                location,
                f"BYTES element {index} states {length} bytes, but only {left} follow",
            )
        elements.append(bytes(raw[offset : offset + length]))
        offset += length
    if offset != size:
        raise invalid(
            location,
            f"{size - offset} bytes follow the last of {count} BYTES elements",
        )
    return elements


def _needs_binary(tensor: Tensor, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"output {tensor.name!r} {reason}; request it with binary_data set to true",
    )


def _show(value: object) -> str:
    """Format a value as the client wrote it, cut to a bounded length."""
    if isinstance(value, list | dict):
        return json_type(value)
    if value is None or isinstance(value, bool | float):
        return json.dumps(value)
    if isinstance(value, int) and abs(value) >= 10**30:
        return "an integer of over 30 digits"
    return f"{value!r:.64}"
