"""Regular expressions of a ``tokenizer.json``, for a library whose matcher backtracks and cannot be stopped.

The pre-tokenizers of GPT, Llama, Qwen, DeepSeek, Bloom and CLIP repeat characters and classes, at most two in an
alternative, and never a group. Whatever can take exponential time repeats a group, or refers back to one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MAX_PATTERN_CHARS = 4000
MAX_REPEATS = 2  # in one alternative: what each more of them tries on a text is multiplied by the text's length
_PART = re.compile(
    r"""(?P<refers>\\[1-9kgRXK])
    |\\[pP]\{\^?\w{1,40}\}|\\x\{[0-9a-fA-F]{1,8}\}|\\.
    |(?P<opens>\((?:\?(?::|=|!|>|<=|<!|[imx-]{1,6}:))?(?![?*]))
    |(?P<closes>\))
    |(?P<several>[*+][?+]?|\{\d{0,6},?\d{0,6}\}\??)
    |(?P<maybe>\?[?+]?)
    |(?P<either>\|)
    |(?P<in_class>\[\^?\]?)
    |[^\\()\[*+?|]""",
    re.VERBOSE | re.DOTALL,
)
_IN_CLASS = re.compile(r"\\.|(?P<opens>\[\^?\]?)|(?P<closes>\])|[^\\\[\]]", re.DOTALL)


def patterns_in(part: Any) -> Iterator[str]:
    """Yield every regular expression of a pipeline's part, as its JSON has it."""
    if isinstance(part, dict):
        if isinstance(pattern := part.get("Regex"), str):
            yield pattern
        part = [*part.values()]
    for inner in part if isinstance(part, list) else ():
        yield from patterns_in(inner)


def check_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern that repeats a group, refers back, or repeats too much."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(
            f"its pattern {pattern[:60]!r} has more than {MAX_PATTERN_CHARS} characters"
        )
    at, depth, repeats, before = 0, 0, 0, ""
    while at < len(pattern):
        part = _PART.match(pattern, at)
        kind = "" if part is None else part.lastgroup or ""
        twice = kind in ("several", "maybe") and before in ("several", "maybe")
        if (
            part is None
            or kind == "refers"
            or twice
            or (kind == "several" and before == "closes")
        ):
            raise ValueError(
                f"its pattern {pattern[:60]!r} repeats a group, or has what is not known here"
            )
        at = part.end() if kind != "in_class" else _behind_class(pattern, part.end())
        depth += (kind == "opens") - (kind == "closes")
        repeats = (
            0 if kind == "either" and depth == 0 else repeats + (kind == "several")
        )
        if repeats > MAX_REPEATS or depth < 0:
            raise ValueError(
                f"its pattern {pattern[:60]!r} has more than {MAX_REPEATS} repetitions in an alternative"
            )
        before = kind


def _behind_class(pattern: str, at: int) -> int:
    """Return the position behind a class that began before ``at``; classes may hold others."""
    depth = 1
    while depth:
        part = _IN_CLASS.match(pattern, at)
        if part is None:
            raise ValueError(
                f"its pattern {pattern[:60]!r} has a class that does not end"
            )
        depth += (part.lastgroup == "opens") - (part.lastgroup == "closes")
        at = part.end()
    return at
