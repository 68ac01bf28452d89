"""Read the table of docs/generated/compression.md, and its tool."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType
from typing import Any, NamedTuple

from conftest import ROOT


def load_tool() -> ModuleType:
    """Import the tool by its path, because ``tools`` is not a package."""
    path = ROOT / "tools" / "compress_table.py"
    spec = importlib.util.spec_from_file_location("compress_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compress_table"] = module
    spec.loader.exec_module(module)
    return module


class Row(NamedTuple):
    """A row of the document.

    Numbers are None where the recipe refuses the model.
    """

    cell: Any
    before: float | None
    after: float | None
    sizes: tuple[int, ...]
    refusal: str

    @property
    def name(self) -> str:
        """Return the row's name for test ids."""
        return " ".join(self.cell)


def documented_rows(tool: ModuleType) -> list[Row]:
    """Return the document's rows; check that they match the tool's."""
    text = (ROOT / "docs" / "generated" / "compression.md").read_text(encoding="utf-8")
    table = re.search(r"(?m)^\| recipe \| model \|.*\n\|.*\n((?:\|.*\n)+)", text)
    assert table is not None
    rows = []
    for line in table[1].splitlines():
        recipe, model, options, before, after, *sizes = (
            cell.strip(" `") for cell in line.strip("|").split("|")
        )
        refusal = after.partition("refused: ")[2]
        numbers = (None, None) if refusal else (_number(before), _number(after))
        counts = tuple(
            int(text.replace(",", ""))
            for pair in sizes
            for text in pair.split(" to ")
            if text
        )
        rows.append(Row(tool.Cell(recipe, model, options), *numbers, counts, refusal))
    assert tuple(row.cell for row in rows) == tool.CELLS
    return rows


def _number(text: str) -> float:
    if text.endswith("%"):
        return float(text.removesuffix("%")) / 100
    return float(text)
