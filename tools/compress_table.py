"""Run every recipe on the embedded models and write the table of docs/compress.md: ``python tools/compress_table.py``.

Needs PyTorch, or the converters' environments, and scikit-learn, whose data the embedded models were trained on.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pocketserve.compress.recipe import Number
from pocketserve.compress.registry import recipe_named
from pocketserve.compress.run import Compression, CompressionSettings, ModelCompressor
from pocketserve.convert.converter import ConversionError
from pocketserve.convert.process import ProcessLimits
from pocketserve.convert.run import ConversionSettings
from pocketserve.repository.scan import scan

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "compress.md"
HEAD = ("recipe", "model", "options", "before", "after", "bytes", "gzip")
INPUTS = {"digits": "image", "petals": "features", "diabetes": "features"}


class Cell(NamedTuple):
    """A row of the table: a recipe with options, as the command takes them, on an embedded model."""

    recipe: str
    model: str
    options: str


CELLS = (
    Cell("magnitude-pruning", "digits", "--amount 0.5"),
    Cell("magnitude-pruning", "digits", "--amount 0.8"),
    Cell("magnitude-pruning", "digits", "--amount 0.9"),
    Cell("magnitude-pruning", "petals", "--amount 0.5"),
    Cell("magnitude-pruning", "diabetes", "--amount 0.5"),
)


def write_data(model: str, folder: Path) -> tuple[Path, Path]:
    """Write the samples that an embedded model was trained on, and those that it has never seen, as .npz files."""
    path = ROOT / "models" / "recipes" / "datasets.py"
    spec = importlib.util.spec_from_file_location("datasets", path)
    assert spec is not None and spec.loader is not None
    datasets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(datasets)
    x_train, y_train, x_test, y_test = getattr(datasets, f"{model}_split")()
    train, test = folder / f"{model}-train.npz", folder / f"{model}-test.npz"
    np.savez(train, **{INPUTS[model]: x_train, "labels": y_train})
    np.savez(test, **{INPUTS[model]: x_test, "labels": y_test})
    return train, test


def options_of(cell: Cell) -> dict[str, str]:
    """Return a row's options by name."""
    words = shlex.split(cell.options)
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}


def compress(cell: Cell, folder: Path) -> Compression:
    """Run a row's recipe on a copy of its model in an empty folder.

    Raises:
        ConversionError: the recipe refuses the model, or the result loses too much.
    """
    shutil.copytree(ROOT / "models" / cell.model, folder / "models" / cell.model)
    (folder / "state").mkdir(mode=0o700)
    train, test = write_data(cell.model, folder)
    options = options_of(cell)
    student = options.pop("student", None)
    numbers: dict[str, Number | None] = {
        name: float(text) if "." in text else int(text) for name, text in options.items()
    }
    wishes = CompressionSettings(train, test, numbers, ROOT / student if student else None)
    settings = ConversionSettings(folder / "models", folder / "state", limits=ProcessLimits(1800.0))
    entry, recipe = scan(folder / "models")[cell.model], recipe_named(cell.recipe)
    compressor = ModelCompressor(entry, recipe, settings, wishes, lambda title, share: None, print)
    try:
        return compressor.compress()
    finally:
        compressor.close()


def row_of(cell: Cell, folder: Path) -> list[str]:
    """Return a row of the table: what came of it, or the sentence by which it is refused."""
    start = [f"`{cell.recipe}`", cell.model, f"`{cell.options}`" if cell.options else ""]
    try:
        compression = compress(cell, folder)
    except ConversionError as error:
        return [*start, "", f"refused: {error.message}", "", ""]
    sizes = (compression.conversion.source_bytes, compression.conversion.result_bytes), compression.gzip_bytes
    pairs = [f"{before:,} to {after:,}" for before, after in sizes]
    return [*start, str(compression.before), str(compression.after), *pairs]


def main() -> int:
    """Measure and rewrite the table."""
    rows = []
    for cell in CELLS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row_of(cell, Path(folder)))
            print(" | ".join(rows[-1]), flush=True)
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    table = "".join(f"| {' | '.join(line)} |\n".replace("| ---", "|---").replace("--- |", "---|") for line in lines)
    text = DOCUMENT.read_text(encoding="utf-8")
    text, count = re.subn(r"(?m)^\| recipe \| model \|.*\n(?:\|.*\n)+", lambda _: table, text)
    assert count == 1
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
