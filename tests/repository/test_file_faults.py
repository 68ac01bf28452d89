"""A list of models explains every broken file, of every kind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gguf_files
from places import MODELS
from plain_user import NOBODY, as_plain_user
from pocketserve.config import load_config
from pocketserve.repository.scan import ModelEntry, scan
from pocketserve.repository.unsupported_files import file_fault
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.runtimes.registry import FORMATS, missing_framework
from pocketserve.service import ModelStatus, Service
from pocketserve_wire import ApiError

DIGITS = MODELS / "digits"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Create a folder that other users may enter.

    Otherwise root's rights would hide errors.
    """
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o777)
        yield Path(made)


def create_model(kind: ModelFormat, models: Path) -> Path:
    """Create a valid model of a kind; return its file."""
    own = models / "m"
    if kind.marker is not None:
        shutil.copytree(DIGITS / kind.name, own)
        return own / kind.marker
    own.mkdir(parents=True)
    if kind.name == "gguf":
        return gguf_files.write_tiny(own / "m.gguf")
    good = next(
        path for path in sorted(DIGITS.iterdir()) if path.name.endswith(kind.suffixes)
    )
    return Path(
        shutil.copy(
            good, own / ("model.py" if kind.name == "torch" else f"m{kind.suffixes[0]}")
        )
    )


def dangle(file: Path, target: str) -> None:
    file.unlink()
    file.symlink_to(target)


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "x.txt").write_text("x")


def replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def lose(file: Path) -> None:
    file.unlink()
    (file.parent / "model.toml").write_text(f'[versions.v]\nfile = "{file.name}"\n')


ANYTHING = ("onnx", "torch", "savedmodel", "tfjs")
"""Kinds without a signature, so that only opening the file shows an error (see below).
"""

FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lose, "does not exist; put it there"),
    "unreadable": (
        lambda file: file.chmod(0),
        "put a file there that this user may read",
    ),
    "in an unreadable folder": (lambda file: file.parent.chmod(0), "chmod u+rx it"),
    "empty": (lambda file: file.write_bytes(b""), "copy or download it again"),
    "a dangling link": (
        lambda file: dangle(file, "nowhere"),
        "put a file there that this user may read",
    ),
    "a link to itself": (
        lambda file: dangle(file, file.name),
        "put a file there that this user may read",
    ),
    "a link that leaves": (
        lambda file: dangle(file, "/etc/passwd"),
        "copy the file into it",
    ),
    "a pipe": (replace_by_pipe, "put a file there that this user may read"),
    "a folder": (
        replace_by_folder,
        "put the model file itself there, or rename the folder",
    ),
    "a page": (
        lambda file: file.write_bytes(b"<!DOCTYPE html><html>"),
        "download the file itself",
    ),
    "a pointer": (
        lambda file: file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        "git lfs pull",
    ),
    "another format": (
        lambda file: file.write_bytes(b"GIF89a" * 99),
        "give it the right ending",
    ),
}


# Whisper's models are ONNX files, and their faults those of ONNX.
KINDS = [kind for kind in FORMATS if kind.suffixes or kind.marker is not None]
CASES = [(kind, fault) for kind in KINDS for fault in FAULTS]
# A missing file of that name is not reported.
CASES = [case for case in CASES if case[0].name != "torch" or case[1] != "a folder"]
CASES = [
    case
    for case in CASES
    if case[1] != "another format" or case[0].name not in ANYTHING
]


def give_to_plain_user(file: Path) -> None:
    """Let the user of :func:`as_plain_user` own a file and its folder, as root."""
    if os.geteuid() != 0:
        return
    for path in (file, file.parent):
        if path.exists():
            os.chown(path, NOBODY, NOBODY)


def problems_of(entry: ModelEntry) -> list[str]:
    """Return the errors of a model and of its versions."""
    problems = [entry.problem]
    for version in entry.versions.values():
        problems.append(version.problem or file_fault(version))
    return [problem for problem in problems if problem is not None]


@pytest.mark.parametrize(
    ("kind", "fault"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_broken_models_are_not_listed_as_ready(
    kind: ModelFormat, fault: str, folder: Path
) -> None:
    """One sentence gives the reason and the way out.

    A repaired file has no error left.
    """
    file = create_model(kind, folder / "models")
    harm, way_out = FAULTS[fault]
    os.chmod(folder / "models", 0o755)
    assert problems_of(scan(folder / "models")["m"]) == []
    mode = file.parent.stat().st_mode
    harm(file)
    try:
        give_to_plain_user(file)
        with as_plain_user():
            (status,) = listed(folder)
            problems = problems_of(scan(folder / "models")["m"])
    finally:
        file.parent.chmod(mode)
    assert not status.ready
    if "link" in fault and kind.marker is not None:
        way_out = "copy the file itself into the folder"
    (problem,) = set(problems)
    assert way_out in problem
    assert "\n" not in problem
    assert len(problem) < 300


def listed(folder: Path) -> list[ModelStatus]:
    """Return a new server's list of its models."""
    service = Service(
        load_config(
            {"models_dir": str(folder / "models"), "state_dir": str(folder / "state")}
        )
    )
    try:
        return service.statuses()
    finally:
        service.close()


@pytest.mark.parametrize("content", ["cut", "text", "zeros"])
@pytest.mark.parametrize(
    "kind",
    [kind for kind in FORMATS if kind.name in ("tflite", "onnx")],
    ids=lambda kind: kind.name,
)
def test_errors_found_by_opening_are_remembered(
    kind: ModelFormat, content: str, folder: Path
) -> None:
    if missing_framework(kind) is not None:
        return
    file = create_model(kind, folder / "models")
    good = file.read_bytes()
    file.write_bytes(
        {
            "cut": good[: len(good) // 2],
            "text": b"no model\n" * 99,
            "zeros": bytes(len(good)),
        }[content]
    )
    settings = {
        "models_dir": str(folder / "models"),
        "state_dir": str(folder / "state"),
    }
    service = Service(load_config(settings))
    try:
        with pytest.raises(
            ApiError,
            match=rf"{file.name} is .*; copy or \w+ the file again|{file.name} is .* copy the",
        ):
            service.load("m")
        (status,) = service.statuses()
        assert not status.ready
        assert file.name in status.reason
        file.write_bytes(good)
        service.load("m")
        (status,) = service.statuses()
        assert status.ready
    finally:
        service.close()


@pytest.mark.parametrize(
    "name", ["m\n.tflite", "m\x1b[2J.tflite", "m\x7f.tflite", "m\u2028 .tflite"]
)
def test_an_invalid_model_name(folder: Path, name: str) -> None:
    (folder / "models").mkdir()
    shutil.copy(DIGITS / "digits.tflite", folder / "models" / name)
    assert listed(folder) == []
    assert scan(folder / "models").misnamed == (name,)
