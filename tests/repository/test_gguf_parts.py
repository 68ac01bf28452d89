"""Find GGUF models in several parts."""

from __future__ import annotations

from pathlib import Path

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
