"""Run recipes and write their rows of docs/generated/compression.md: ``tools/compress_table.py [RECIPE…]``.

It needs scikit-learn, whose data the embedded models were trained on, and PyTorch or
the converters' environments.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pocketserve.repository.scan import scan
from pocketserve_lab.compress.recipe import OPTIONS, Number
from pocketserve_lab.compress.registry import recipe_named
from pocketserve_lab.compress.run import (
    Compression,
    CompressionSettings,
    ModelCompressor,
)
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.process import ProcessLimits
from pocketserve_lab.convert.run import ConversionSettings

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "generated" / "compression.md"
HEAD = ("recipe", "model", "options", "before", "after", "bytes", "gzip")
INPUTS = {"digits": "image", "petals": "features", "diabetes": "features"}


class Cell(NamedTuple):
    """A row of the table: a recipe's options and model."""

    recipe: str
    model: str
    options: str


CELLS = (
    Cell("magnitude-pruning", "digits", "--amount 0.5"),
    Cell("magnitude-pruning", "digits", "--amount 0.8"),
    Cell("magnitude-pruning", "digits", "--amount 0.9"),
    Cell("structured-pruning", "digits", "--amount 0.3"),
    Cell("clustering", "digits", "--clusters 16"),
    Cell("distillation", "digits", "--student models/recipes/digits_student.py"),
    Cell("dynamic-quantization", "digits", ""),
    Cell("static-quantization", "digits", ""),
    Cell("qat", "digits", ""),
    Cell("fusion", "digits", ""),
    Cell("fusion", "digits", "--version torchscript-distillation"),
    Cell("static-quantization", "petals", ""),
    Cell("static-quantization", "diabetes", ""),
    Cell("magnitude-pruning", "diabetes", "--amount 0.5"),
    Cell("clustering", "diabetes", ""),
)


def write_data(model: str, folder: Path) -> tuple[Path, Path]:
    """Write a model's training samples and unseen ones as .npz."""
    path = ROOT / "models" / "recipes" / "datasets.py"
    spec = importlib.util.spec_from_file_location("datasets", path)
    assert spec is not None and spec.loader is not None
    datasets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(datasets)
    x_train, y_train, x_test, y_test = getattr(datasets, f"{model}_split")()
    train = folder / f"{model}-train.npz"
    test = folder / f"{model}-test.npz"
    np.savez(train, **{INPUTS[model]: x_train, "labels": y_train})
    np.savez(test, **{INPUTS[model]: x_test, "labels": y_test})
    return train, test


def options_of(cell: Cell) -> dict[str, str]:
    """Return a row's options by name."""
    words = shlex.split(cell.options)
    return {
        name.removeprefix("--"): value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }


def compress(cell: Cell, folder: Path) -> Compression:
    """Run a row's recipe on a copy of its model.

    Raises:
        ConversionError: the recipe refuses the model, or the result loses too much.
    """
    shutil.copytree(ROOT / "models" / cell.model, folder / "models" / cell.model)
    (folder / "state").mkdir(mode=0o700)
    data = write_data(cell.model, folder)
    origin = options_of(cell).get("version", "").removeprefix("torchscript-")
    for row in (
        *(
            other
            for other in CELLS
            if other.recipe == origin and other.model == cell.model
        ),
        cell,
    ):
        compression = _run(row, folder, data)
    return compression


def _run(cell: Cell, folder: Path, data: tuple[Path, Path]) -> Compression:
    options = options_of(cell)
    student = options.pop("student", None)
    version = options.pop("version", None)
    numbers: dict[str, Number | None] = {
        name: OPTIONS[name].type(text) for name, text in options.items()
    }
    wishes = CompressionSettings(*data, numbers, ROOT / student if student else None)
    limits = ProcessLimits(1800.0)
    settings = ConversionSettings(
        folder / "models", folder / "state", version=version, limits=limits
    )
    entry = scan(folder / "models")[cell.model]
    recipe = recipe_named(cell.recipe)
    compressor = ModelCompressor(
        entry, recipe, settings, wishes, lambda title, share: None, print
    )
    try:
        return compressor.compress()
    finally:
        compressor.close()


def row_of(cell: Cell, folder: Path) -> list[str]:
    """Return a row with the result or the refusal."""
    start = [
        f"`{cell.recipe}`",
        cell.model,
        f"`{cell.options}`" if cell.options else "",
    ]
    try:
        compression = compress(cell, folder)
    except ConversionError as error:
        return [*start, "", f"refused: {error.message}", "", ""]
    sizes = (
        (compression.conversion.source_bytes, compression.conversion.result_bytes),
        compression.gzip_bytes,
    )
    pairs = [f"{before:,} to {after:,}" for before, after in sizes]
    return [*start, str(compression.before), str(compression.after), *pairs]


def with_rows(text: str, rows: Mapping[Cell, Sequence[str]]) -> str:
    """Replace rows of the table, in the cells' order."""
    match = re.search(r"(?m)^\| recipe \| model \|.*\n(?:\|.*\n)+", text)
    assert match is not None
    lines = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in match[0].splitlines()[2:]
    ]
    known = {
        Cell(*(part.strip("`") for part in line[:3])): line for line in lines
    } | dict(rows)
    table = [
        HEAD,
        ["---"] * len(HEAD),
        *(known[cell] for cell in CELLS if cell in known),
    ]
    plain = "".join(
        f"| {' | '.join(line)} |\n".replace("| ---", "|---").replace("--- |", "---|")
        for line in table
    )
    return text[: match.start()] + plain + text[match.end() :]


def main() -> int:
    """Measure the named recipes, or all, and write the table."""
    names = sys.argv[1:] or [cell.recipe for cell in CELLS]
    for cell in CELLS:
        if cell.recipe in names:
            with tempfile.TemporaryDirectory() as folder:
                row = row_of(cell, Path(folder))
            print(" | ".join(row), flush=True)
            DOCUMENT.write_text(
                with_rows(DOCUMENT.read_text(encoding="utf-8"), {cell: row}),
                encoding="utf-8",
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
