"""Find GGUF models in several parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_files
from pocketserve.repository.files import version_files
from pocketserve.repository.scan import scan


def test_bare_parts_are_one_model(tmp_path: Path) -> None:
    parts = gguf_files.write_parts(tmp_path, "big-q8", 3)
    models = scan(tmp_path)
    assert list(models) == ["big-q8"]
    (version,) = models["big-q8"].versions.values()
    assert version.path == parts[0]
    assert version_files(version) == parts


def test_parts_in_a_folder_are_one_version_each(tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    gguf_files.write_parts(folder, "big-q4", 2)
    gguf_files.write_parts(folder, "big-q8", 3)
    gguf_files.write_tiny(folder / "big.gguf")
    versions = scan(tmp_path)["big"].versions
    assert sorted(versions) == ["gguf", "gguf-q4", "gguf-q8"]


def test_a_later_part_alone_is_listed(tmp_path: Path) -> None:
    """Its load tells what is missing."""
    parts = gguf_files.write_parts(tmp_path, "m", 3)
    parts[0].unlink()
    assert list(scan(tmp_path)) == ["m"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"split.no": 0, "split.count": 1},
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_merged_model_may_keep_the_name_of_a_part(
    tmp_path: Path, values: dict[str, Any], number: int
) -> None:
    """It needs no other file, and its name stays that of the file."""
    name = f"m-0000{number}-of-00002"
    split = {key: np.uint16(value) for key, value in values.items()}
    file = gguf_files.write_tiny(tmp_path / f"{name}.gguf", **split)
    models = scan(tmp_path)
    assert list(models) == [name]
    (version,) = models[name].versions.values()
    assert version_files(version) == [file]


def test_an_unreadable_first_part_needs_no_other_file(tmp_path: Path) -> None:
    """The load tells of its damage, and not of a missing part."""
    first = gguf_files.write_parts(tmp_path, "m", 2)[0]
    first.write_bytes(first.read_bytes()[:64])
    models = scan(tmp_path)
    assert list(models) == ["m"]
    (version,) = models["m"].versions.values()
    assert version_files(version) == [first]
