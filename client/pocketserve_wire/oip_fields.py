"""Parse the fields of an inference message: names, parameters and tensors.

Every error is an ApiError that names its field: INVALID_TENSOR for tensors,
INVALID_PARAMETER for parameters, NOT_IMPLEMENTED for shared memory, else
INVALID_REQUEST.
"""

from __future__ import annotations

from typing import Any

from . import strict_json
from .errors import ApiError, ErrorCode
from .limits import MAX_ELEMENTS, MAX_NAME_CHARS, MAX_TENSOR_NAME_CHARS, MAX_TENSORS
from .tensor import (
    Tensor,
    from_json_values,
    from_raw,
    invalid,
    parse_datatype,
    parse_shape,
)

Parameters = dict[str, Any]

NO_SHARED_MEMORY = (
    "shared memory is not supported: apps on a phone share none; "
    "send tensors as binary data"
)


def parse_parameters(value: object, location: str) -> Parameters:
    """Check a ``parameters`` object: flat, with bounded names and simple values."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_parameter(
            location, f"must be an object, not {strict_json.json_type(value)}"
        )
    for key, item in value.items():
        if len(key) > MAX_NAME_CHARS:
            raise bad_parameter(
                location,
                f"a name has {len(key)} characters, the limit is {MAX_NAME_CHARS}",
            )
        if item is None or isinstance(item, list | dict):
            raise bad_parameter(
                f"{location}.{key}", "must be a string, a number or a boolean"
            )
    return dict(value)


class BinaryReader:
    """Reads the bytes after the JSON part in order; none may be left over."""

    def __init__(self, data: memoryview) -> None:
        self._rest = data

    def take(self, size: int, location: str) -> memoryview:
        """Return the next bytes, without a copy."""
        left = len(self._rest)
        if size > left:
            raise invalid(
                location,
                f"unexpected size: binary_data_size is {size}, but only {left} bytes "
                "are left",
            )
        part, self._rest = self._rest[:size], self._rest[size:]
        return part

    def expect_end(self) -> None:
        """Raise if bytes are left that belong to no tensor."""
        surplus = len(self._rest)
        if surplus:
            raise bad_request(
                f"unexpected additional input data: {surplus} bytes follow the last "
                "tensor"
            )


def parse_id(value: object) -> str:
    """Return a request's id; empty if it has none."""
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        raise bad_request(f"id must be a string of at most {MAX_NAME_CHARS} characters")
    _refuse_surrogates(value, "id")
    return value


def _refuse_surrogates(text: str, location: str) -> None:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise bad_request(f"{location} contains half of a surrogate pair")


def parse_list(header: dict[str, Any], key: str, *, required: bool) -> list[Any]:
    """Return the unchecked entries of ``inputs`` or ``outputs``."""
    value = header.get(key)
    if value is None and not required:
        return []
    if not isinstance(value, list):
        fault = "is missing" if value is None else f"is {strict_json.json_type(value)}"
        raise bad_request(f"{key} must be an array of tensors, but it {fault}")
    if len(value) > MAX_TENSORS:
        raise bad_request(f"{key} has {len(value)} entries, the limit is {MAX_TENSORS}")
    return value


def parse_name(item: object, location: str) -> str:
    """Return the name of a list entry."""
    if not isinstance(item, dict):
        raise bad_request(
            f"{location} must be an object, not {strict_json.json_type(item)}"
        )
    name = item.get("name")
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_TENSOR_NAME_CHARS
        or "\0" in name
    ):
        raise bad_request(
            f"{location}.name must be a string of 1 to {MAX_TENSOR_NAME_CHARS} "
            "characters"
        )
    _refuse_surrogates(name, f"{location}.name")
    return name


def parse_tensor(item: Any, location: str, reader: BinaryReader) -> Tensor:
    """Parse a tensor whose data is JSON or, with ``binary_data_size``, raw bytes."""
    name = parse_name(item, location)
    location = f"{location} {name!r}"
    datatype = parse_datatype(item.get("datatype"), location)
    shape = parse_shape(item.get("shape"), location)
    parameters = parse_tensor_parameters(item, location)
    size, values = parameters.pop("binary_data_size", None), item.get("data")
    data: memoryview | list[bytes]
    if size is None:
        if values is None:
            raise invalid(
                location, "has neither data nor the parameter binary_data_size"
            )
        data = from_json_values(values, datatype, shape, location)
    elif values is not None:
        raise invalid(
            location,
            "has both data and the parameter binary_data_size; send one of them",
        )
    elif type(size) is not int or not 0 <= size <= MAX_ELEMENTS:
        raise invalid(location, "binary_data_size must be a number of bytes")
    else:
        data = from_raw(reader.take(size, location), datatype, shape, location)
    return Tensor(name, datatype.name, shape, data, parameters)


def parse_tensor_parameters(item: Any, location: str) -> Parameters:
    """Check the parameters of a tensor or a requested output."""
    parameters = parse_parameters(item.get("parameters"), f"{location}.parameters")
    if "shared_memory_region" in parameters:
        raise ApiError(ErrorCode.NOT_IMPLEMENTED, f"{location}: {NO_SHARED_MEMORY}")
    return parameters


def pop_flag(parameters: Parameters, key: str, location: str, *, default: bool) -> bool:
    """Remove a boolean parameter and return its value."""
    value = parameters.pop(key, default)
    if not isinstance(value, bool):
        raise bad_parameter(f"{location}.{key}", "must be true or false")
    return value


def refuse_duplicates(names: list[str], key: str) -> None:
    """Raise if a name is repeated."""
    unique: set[str] = set()
    for name in names:
        if name in unique:
            raise bad_request(f"{key} names {name!r} twice")
        unique.add(name)


def bad_parameter(location: str, detail: str) -> ApiError:
    """Return the error for an invalid parameter."""
    return ApiError(ErrorCode.INVALID_PARAMETER, f"{location} {detail}")


def bad_request(message: str) -> ApiError:
    """Return the error for a message that violates the protocol."""
    return ApiError(ErrorCode.INVALID_REQUEST, message)
