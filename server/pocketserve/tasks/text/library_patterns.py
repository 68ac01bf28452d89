"""Check the regular expressions of a ``tokenizer.json``.

The library's matcher backtracks and cannot be interrupted. The pre-tokenizers of GPT,
Llama, Qwen, DeepSeek, Bloom and CLIP repeat characters and classes, at most two in an
alternative, and never a group. Patterns that can take exponential time repeat a group
or refer back to one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MAX_PATTERN_CHARS = 4000
# In one alternative: each further one multiplies the time by the text's length.
MAX_REPEATS = 2
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
    """Yield every regular expression in the JSON of a pipeline's part."""
    if isinstance(part, dict):
        pattern = part.get("Regex")
        if isinstance(pattern, str):
            yield pattern
        part = [*part.values()]
    if isinstance(part, list):
        for inner in part:
            yield from patterns_in(inner)


def check_pattern(pattern: str) -> None:
    """Reject a pattern that repeats groups, refers back or repeats too often.

    Raises:
        ValueError: says why.
    """
    quoted = f"its pattern {pattern[:60]!r}"
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"{quoted} has more than {MAX_PATTERN_CHARS} characters")
    at = depth = repeats = 0
    before = ""
    while at < len(pattern):
        part = _PART.match(pattern, at)
        kind = "refers"
        if part is not None:
            kind = part.lastgroup or ""
        if part is None or not _may_follow(kind, before):
            raise ValueError(
                f"{quoted} repeats a group, or has syntax that is not supported"
            )
        at = part.end()
        if kind == "in_class":
            at = _behind_class(pattern, at)
        elif kind == "opens":
            depth += 1
        elif kind == "closes":
            depth -= 1
        elif kind == "several":
            repeats += 1
        elif kind == "either" and depth == 0:
            repeats = 0
        if repeats > MAX_REPEATS or depth < 0:
            raise ValueError(
                f"{quoted} has more than {MAX_REPEATS} repetitions in an alternative"
            )
        before = kind


def _may_follow(kind: str, before: str) -> bool:
    """Return whether a kind of part is allowed after another."""
    if kind == "refers":
        return False
    if kind == "several" and before == "closes":
        return False
    quantifiers = ("several", "maybe")
    return not (kind in quantifiers and before in quantifiers)


def _behind_class(pattern: str, at: int) -> int:
    """Return the position after a class, which may nest."""
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
