"""What commands print: plain tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """One JSON document, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the last one is left ragged."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, one pair a line; empty values are left out."""
    width = max((len(name) for name, value in facts if value), default=0)
    for name, value in facts:
        if value:
            print(f"{name.ljust(width)}  {value}")


def human_bytes(size: float) -> str:
    """A size with a unit that fits, such as ``1.9 MB``."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
