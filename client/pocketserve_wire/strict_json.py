"""Strict JSON: UTF-8, no duplicate keys, bounded depth and size.

NaN, Infinity and -Infinity are accepted as bare tokens because tritonclient sends them
and Triton returns them. The parser of each field decides whether it allows them.
"""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any, Final

from .errors import ApiError, ErrorCode
from .limits import (
    MAX_JSON_CONTAINERS,
    MAX_JSON_DEPTH,
    MAX_JSON_SCALARS,
    MAX_JSON_STRINGS,
)

_STRING: Final = re.compile(rb'"[^"]*"?')
_ALL_BUT_MARKS: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
# The change in depth at each byte, as a signed byte: 1 or -1 (255) for a bracket.
_STEP_OF_BRACKET: Final = {ord("["): 1, ord("{"): 1, ord("]"): 255, ord("}"): 255}
_STEPS: Final = bytes(_STEP_OF_BRACKET.get(byte, 0) for byte in range(256))

INFINITY, MINUS_INFINITY = math.inf, -math.inf
_CONSTANTS = {"NaN": math.nan, "Infinity": INFINITY, "-Infinity": MINUS_INFINITY}


def is_too_large(value: float) -> bool:
    """Return whether an infinite value was parsed from a number such as ``1e400``.

    Parsed infinity tokens are one of two objects; overflowing numbers never are.
    """
    return math.isinf(value) and value is not INFINITY and value is not MINUS_INFINITY


def loads(document: bytes | memoryview) -> Any:
    """Parse one JSON document.

    Raises:
        ApiError: MALFORMED_JSON, with the position or the offending key.
    """
    raw = bytes(document)
    # A document with fewer bytes than the lowest limit cannot exceed any of them.
    if len(raw) > MAX_JSON_CONTAINERS:
        excess = excess_of(raw)
        if excess:
            raise _malformed(
                f"{excess}; send tensors as binary, or several smaller requests"
            )
    # Checked before parsing, because the parser is recursive and a thread's stack may
    # be too small for thousands of levels.
    brackets = raw.count(b"[") + raw.count(b"{")
    if brackets > MAX_JSON_DEPTH and depth_of(raw) > MAX_JSON_DEPTH:
        raise _malformed(f"arrays and objects may nest {MAX_JSON_DEPTH} deep at most")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"the body is not UTF-8 (byte {error.start})") from None
    if text.startswith("\ufeff"):
        raise _malformed("the body starts with a byte order mark; send plain UTF-8")
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_CONSTANTS.__getitem__
        )
    except json.JSONDecodeError as error:
        raise _malformed(
            f"{error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:  # an integer with more digits than Python converts
        raise _malformed("a number has too many digits") from None


def depth_of(raw: bytes) -> int:
    """Return the nesting depth of a document, without parsing it.

    For malformed JSON it is the depth of the part before the first error.
    """
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Strings keep their quotes only if they contain brackets; then they are removed.
    marks = raw.translate(None, _ALL_BUT_MARKS).replace(b'""', b"")
    if b'"' in marks:
        marks = _STRING.sub(b"", marks)
    steps = memoryview(marks.translate(_STEPS)).cast("b")
    return max(accumulate(steps, initial=0))


def excess_of(raw: bytes) -> str:
    """Describe the limit that a document exceeds; empty if it exceeds none.

    Brackets and commas inside strings are counted, too.
    """
    limits = (
        (MAX_JSON_CONTAINERS, "arrays and objects"),
        (MAX_JSON_SCALARS, "values"),
        (MAX_JSON_STRINGS, "texts and names"),
    )
    for count, (limit, parts) in zip(_counts(raw), limits, strict=True):
        if count > limit:
            return f"it has {count} {parts}, the limit is {limit}"
    return ""


def parsed_bytes(raw: bytes) -> int:
    """Estimate the memory that parsing a document takes, without parsing it.

    CPython 3.11 takes 56 bytes for a list, 184 for a small dict, 24 for a number plus 8
    for its reference, and 60 or more for a string. Numbers are then packed into 4 or 8
    bytes each. The document is copied and decoded, with four bytes per character if any
    character needs them; a long string takes the same width again.
    """
    containers, scalars, strings = _counts(raw)
    bytes_per_character = 4 if raw.isascii() else 11
    return (
        len(raw) * bytes_per_character + 120 * containers + 40 * scalars + 80 * strings
    )


def _counts(raw: bytes) -> tuple[int, int, int]:
    """Return upper bounds of the containers, the values and the strings."""
    containers = raw.count(b"[") + raw.count(b"{")
    return containers, raw.count(b",") + 1, raw.count(b'"') // 2


def loads_object(document: bytes | memoryview) -> dict[str, Any]:
    """Parse a document that must be an object, as :func:`loads`."""
    value = loads(document)
    if not isinstance(value, dict):
        raise _malformed(f"the body must be a JSON object, not {json_type(value)}")
    return value


def dumps(value: Any) -> bytes:
    """Return compact ASCII JSON; non-finite numbers become bare tokens."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def dumps_finite(value: Any) -> bytes:
    """Return compact ASCII JSON; non-finite numbers become null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    except ValueError:
        return dumps(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def json_type(value: object) -> str:
    """Return the JSON name of a parsed value's type, for error messages."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
    }
    return names.get(type(value), "an object")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise _malformed(f"the key {key[:64]!r} occurs twice in one object")
            keys.add(key)
    return members


def _malformed(detail: str) -> ApiError:
    return ApiError(
        ErrorCode.MALFORMED_JSON, f"failed to parse the request JSON: {detail}"
    )
