"""What commands print: plain tables for people, JSON for programs."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

UNPRINTABLE: Final = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of controls, halves of characters, and line ends."""


def print_json(value: Any) -> None:
    """One JSON document, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def printable(text: str) -> str:
    """The text in one line that cannot command a terminal: anybody may have made the file that a name comes from."""
    shown = (repr(char)[1:-1] if unicodedata.category(char) in UNPRINTABLE else char for char in text)
    return "".join(shown)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the last one is left ragged."""
    header, *rows = ([printable(cell) for cell in row] for row in (header, *rows))
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, one pair a line; empty values are left out."""
    width = max((len(name) for name, value in facts if value), default=0)
    for name, value in facts:
        if value:
            print(f"{printable(name).ljust(width)}  {printable(value)}")


def human_bytes(size: float) -> str:
    """A size with a unit that fits, such as ``1.9 MB``."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
