"""Model files with unknown endings are found by their content."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import MODELS
from pocketserve.repository.scan import locate, scan
from pocketserve.runtimes.registry import format_at

DIGITS = MODELS / "digits"
FILES = {
    "tflite": "digits.tflite",
    "onnx": "digits.onnx",
    "torchscript": "digits.ts",
    "executorch": "digits.pte",
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("ending", [".bin", ".model", "", ".x1"])
def test_a_bare_file(tmp_path: Path, kind: str, ending: str) -> None:
    shutil.copy(DIGITS / FILES[kind], tmp_path / f"trained{ending}")
    models = scan(tmp_path)

    assert list(models) == ["trained"]
    assert list(models["trained"].versions) == [kind]
    assert locate(tmp_path / f"trained{ending}")[1] is not None


@pytest.mark.parametrize("kind", FILES)
def test_a_file_in_a_folder(tmp_path: Path, kind: str) -> None:
    (tmp_path / "m").mkdir()
    shutil.copy(DIGITS / FILES[kind], tmp_path / "m" / "trained.bin")

    assert list(scan(tmp_path)["m"].versions) == [kind]


def test_the_lite_ending_of_edge_impulse(tmp_path: Path) -> None:
    shutil.copy(DIGITS / "digits.tflite", tmp_path / "trained.lite")

    assert list(scan(tmp_path)["trained"].versions) == ["tflite"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08",
        b"\x08\x08\x12",
        b"hello world, this is a text",
        b"\x08\x0a\x12\x05\xff\xff\xff\xff\xff",
        b"PK\3\4",
    ],
)
@pytest.mark.parametrize("name", ["notes", "data.bin", "weights.data"])
def test_other_files_are_not_models(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)

    assert list(scan(tmp_path)) == []
    assert format_at(tmp_path / name) is None


@pytest.mark.parametrize("name", ["model.txt", "model.json", ".model", "model.jpg"])
def test_files_of_known_other_kinds_are_not_opened(tmp_path: Path, name: str) -> None:
    shutil.copy(DIGITS / "digits.tflite", tmp_path / name)

    assert list(scan(tmp_path)) == []
