"""A folder with everything that a paper cites of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pocketserve.terminal.errors import CommandError
from pocketserve_lab.compare.figure import svg_of, write_png
from pocketserve_lab.compare.paper.environment import describe_environment
from pocketserve_lab.compare.paper.methods import methods_text
from pocketserve_lab.compare.paper.tables import (
    latex_table,
    markdown_table,
    numbers_csv,
    samples_csv,
)

NAMESPACE = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '


def check_folder(folder: Path) -> None:
    """Raise CommandError if a report can't be written, before anything is measured."""
    if not folder.absolute().parent.is_dir():
        raise CommandError(
            f"{str(folder)!r} lies in a folder that does not exist; make it first"
        )
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"{str(folder)!r} is a file; name a folder with --report")
    if folder.is_dir() and any(folder.iterdir()):
        raise CommandError(
            f"{str(folder)!r} is not empty; name a new folder with --report"
        )
    if find_spec("PIL") is None:
        raise CommandError("--report needs Pillow: pip install 'pocketserve[image]'")


def write_paper(result: Mapping[str, Any], folder: Path, seconds: float) -> None:
    """Write tables, figures, samples, environment and methods.

    Args:
        seconds: that the timed turns were given.

    Raises:
        CommandError: the folder isn't empty any more.
        OSError: a file cannot be written.
    """
    check_folder(folder)
    environment = describe_environment()
    public = without_paths(result)
    runs: Sequence[Mapping[str, Any]] = [public]
    if "repeats" in public:
        runs = public["repeats"]["runs"]
    texts = {
        "table.csv": numbers_csv(public),
        "table.md": markdown_table(public),
        "table.tex": latex_table(public),
        "samples.csv": samples_csv(runs),
        "result.json": _json(public),
        "environment.json": _json(environment),
        "figure.svg": svg_of(public).replace("<svg ", NAMESPACE, 1),
        "methods.md": methods_text(public, environment, seconds),
    }
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_png(public, folder / "figure.png")


def without_paths(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result that names no folder of this device."""
    public = dict(result)
    public.pop("folder", None)
    data = dict(public["data"])
    data["origin"] = Path(data["origin"]).name
    data["samples"] = [_relative(name) for name in data["samples"]]
    public["data"] = data
    if "repeats" in public:
        runs = [without_paths(run) for run in public["repeats"]["runs"]]
        public["repeats"] = {**public["repeats"], "runs": runs}
    return public


def _relative(name: str) -> str:
    return Path(name).name if Path(name).is_absolute() else name


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=False) + "\n"
