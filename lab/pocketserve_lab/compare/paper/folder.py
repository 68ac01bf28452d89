"""A folder with everything that a paper cites of a comparison."""

from __future__ import annotations

import json
import re
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

_QUOTED_PATH = re.compile(r"(['\"])/[^'\"\n]*/([^'\"/\n]+)/?\1")
_PATH = re.compile(r"(?<![\w.~:/-])/(?:[^\s'\"/:;,()]+/)+([^\s'\"/:;,()]*)")
"""Absolute paths; neither units, such as tokens/s, nor addresses."""

NAMESPACE = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '


def check_folder(folder: Path) -> None:
    """Raise CommandError if a report can't be written, before anything is measured."""
    if not folder.absolute().parent.is_dir():
        raise CommandError(
            f"{str(folder)!r} is in a folder that does not exist; create it first"
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
    """Return a result that names no folder of this device.

    Options and the texts of errors name some, too.
    """
    public = dict(result)
    folder = Path(public.pop("folder", "/"))
    public["data"] = _data_without_paths(public["data"])
    if "repeats" in public:
        runs = [without_paths(run) for run in public["repeats"]["runs"]]
        public["repeats"] = {**public["repeats"], "runs": runs}
    reduced: dict[str, Any] = _reduced(public, folder)
    return reduced


def _data_without_paths(data: Mapping[str, Any]) -> dict[str, Any]:
    public = dict(data)
    public["origin"] = Path(public["origin"]).name
    public["samples"] = [_relative(name) for name in public["samples"]]
    return public


def _reduced(value: Any, folder: Path) -> Any:
    """Return a JSON value whose strings have names instead of absolute paths.

    Args:
        folder: the model's, which may have spaces in its name.
    """
    if isinstance(value, str):
        return _without_folders(value, folder)
    if isinstance(value, Mapping):
        return {key: _reduced(member, folder) for key, member in value.items()}
    if type(value) in (list, tuple):
        return [_reduced(member, folder) for member in value]
    return value


def _without_folders(text: str, folder: Path) -> str:
    """Reduce the absolute paths in a text to their last names."""
    if "/" not in text:
        return text
    for root in (folder, folder.parent, Path.home()):
        if root.parent != root:
            text = text.replace(f"{root}/", "")
    if text.startswith("/") and ": " not in text:
        return Path(text).name
    text = _QUOTED_PATH.sub(r"\1\2\1", text)
    return _PATH.sub(r"\1", text)


def _relative(name: str) -> str:
    return Path(name).name if Path(name).is_absolute() else name


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=False) + "\n"
