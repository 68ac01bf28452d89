"""The check of a Keras archive before Keras opens it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from pocketserve.runtimes.tensorflow.keras import MAX_METADATA_BYTES, _check_file


@pytest.mark.parametrize(
    ("padding", "version"),
    [
        (0, "3.14.0"),
        (MAX_METADATA_BYTES, ""),
    ],
)
def test_only_small_metadata_is_read(
    tmp_path: Path, padding: int, version: str
) -> None:
    """An archive may inflate to a hundred times its size: memory has other limits."""
    path = tmp_path / "m.keras"
    metadata = json.dumps({"keras_version": "3.14.0", "padding": " " * padding})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("metadata.json", metadata)
    assert _check_file(path) == version
