"""Answers of ``predict --plain``: one line of text for a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pocketserve.terminal.output import printable

KEYS = ("label", "answer", "text", "value")
"""Keys of an entry's own text, the most specific first."""


def plain_lines(answer: dict[str, Any], *, show_all: bool) -> Iterator[str]:
    """Yield the best entry as text, or every entry.

    A transcript is its whole text. An answer without entries is an empty line.
    """
    if "text" in answer and not show_all:
        yield _one_line(answer["text"])
        return
    entries: list[dict[str, Any]] = answer["predictions"]
    if not entries:
        yield ""
    for entry in entries if show_all else entries[:1]:
        yield _entry_text(entry)


def _entry_text(entry: dict[str, Any]) -> str:
    for key in KEYS:
        if key in entry:
            return _one_line(entry[key])
    return json.dumps(entry)


def _one_line(value: Any) -> str:
    words = str(value).split()
    return printable(" ".join(words))
