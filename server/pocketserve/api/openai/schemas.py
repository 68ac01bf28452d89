"""Bound the JSON schemas that engines turn into grammars.

A grammar with nested repetitions has so many states that an engine computes for
minutes, and uses all of its memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pocketserve_wire import ApiError, ErrorCode

MAX_REPETITIONS: Final = 1000
MAX_GROUPS: Final = 16
MAX_DEPTH: Final = 64
UNBOUNDED: Final = 16
"""The count of a repetition without an upper limit, which has fewer states."""

_LENGTHS: Final = ("minItems", "maxItems", "minLength", "maxLength")
_MAX_DIGITS: Final = 6
_TOKEN: Final = re.compile(
    r"""
    \\. | \[\^?\]?(?:\\.|[^\]\\])*\]         # an escape, or a set of characters
    | (?P<open>\((?:\?[:=!<])?) | (?P<close>\))
    | (?P<any>[*+]) | (?P<optional>\?)
    | \{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\}
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def check_schema(field: str, schema: Any) -> None:
    """Refuse a JSON schema whose grammar would be too large.

    Raises:
        ApiError: INVALID_REQUEST, with the place.
    """
    pending = [(field, schema, 0)]
    while pending:
        place, value, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise _too_large(field, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            _check_keywords(place, value)
            for key, item in value.items():
                pending.append((f"{place}.{key}", item, depth + 1))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                pending.append((f"{place}[{number}]", item, depth + 1))


def _check_keywords(place: str, schema: Mapping[str, Any]) -> None:
    for key in _LENGTHS:
        length = schema.get(key)
        if isinstance(length, int | float) and length > MAX_REPETITIONS:
            raise _too_large(f"{place}.{key}", f"must be at most {MAX_REPETITIONS}")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        _check_pattern(f"{place}.pattern", pattern)


def _check_pattern(place: str, pattern: str) -> None:
    """Multiply the counts of nested repetitions, and bound the products."""
    groups = [1]  # the largest product in each open group
    last = 1  # the product in the part before a repetition
    for token in _TOKEN.finditer(pattern):
        count = _count(token)
        if count is not None:
            last *= count
        elif token["open"]:
            groups.append(1)
            last = 1
        elif token["close"] and len(groups) > 1:
            last = groups.pop()
        else:
            last = 1
        groups[-1] = max(groups[-1], last)
        if len(groups) > MAX_GROUPS:
            raise _too_large(place, f"has more than {MAX_GROUPS} nested groups")
        if last > MAX_REPETITIONS:
            detail = f"repeats a part more than {MAX_REPETITIONS} times in all"
            raise _too_large(place, f"{detail}; nested repetitions multiply")


def _count(token: re.Match[str]) -> int | None:
    """Return how often a token repeats the part before; None if it is no repetition."""
    if token["any"]:
        return UNBOUNDED
    if token["optional"]:
        return 2
    if token["low"] is None:
        return None
    low, high = _number(token["low"]), _number(token["high"])
    if token["comma"] and not token["high"]:
        return max(low, UNBOUNDED)
    return max(low, high, 1)


def _number(digits: str) -> int:
    return int(digits[: _MAX_DIGITS + 1] or "0")


def _too_large(place: str, detail: str) -> ApiError:
    path = f"{place:.200}"
    return ApiError(ErrorCode.INVALID_REQUEST, f"'{path}' {detail}", field=path)
