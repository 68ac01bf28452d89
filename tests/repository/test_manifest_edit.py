"""Tests of commands that edit a manifest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import MODELS
from pocketserve.repository.manifest import read_manifest
from pocketserve.repository.manifest_edit import Document, edit_manifest
from pocketserve.repository.toml_table import ManifestError

TEXT = """# of the family album
default_version = "a"  # the small one

[versions.a]
file = "a.tflite"

# tried in May
[versions.b]
file = "b.tflite"
"""


def default_to(version: str) -> Callable[[Document], object]:
    """Return a change that makes a version the default."""
    return lambda document: document.__setitem__("default_version", version)


def test_comments_and_order_stay(tmp_path: Path) -> None:
    """Only the change differs.

    The file's mode stays, and no temporary file is left.
    """
    path = tmp_path / "model.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    edit_manifest(tmp_path, default_to("b"))
    assert path.read_text() == TEXT.replace('= "a"  #', '= "b"  #')
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["model.toml"]


def test_windows_line_ends_stay(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    edit_manifest(tmp_path, default_to("b"))
    assert (
        path.read_bytes().count(b"\r\n")
        == path.read_bytes().count(b"\n")
        == TEXT.count("\n")
    )
    edit_manifest(
        tmp_path,
        lambda document: document["versions"].__setitem__(
            "c", {"file": "c", "sha256": "0" * 64}
        ),
    )
    assert (
        path.read_bytes().count(b"\r\n")
        == path.read_bytes().count(b"\n")
        == TEXT.count("\n") + 4
    )
    assert read_manifest(path).versions["c"].file == "c"


def test_nan_values_stay(tmp_path: Path) -> None:
    """TOML has nan, which is not equal to itself."""
    path = tmp_path / "model.toml"
    path.write_text(TEXT + "\n[versions.b.provenance]\nworst = [nan, -nan, inf]\n")
    edit_manifest(tmp_path, default_to("b"))
    assert read_manifest(path).default_version == "b"
    assert "worst = [nan, -nan, inf]" in path.read_text()


def test_a_folder_without_a_manifest_gets_one(tmp_path: Path) -> None:
    """One line suffices if the folder implies the versions."""
    edit_manifest(tmp_path, default_to("onnx"))
    assert (tmp_path / "model.toml").read_text() == 'default_version = "onnx"\n'


@pytest.mark.parametrize("model", ["digits", "diabetes", "numbers", "petals"])
def test_no_change_changes_nothing(model: str, tmp_path: Path) -> None:
    """The embedded models' manifests stay identical."""
    path = tmp_path / "model.toml"
    path.write_bytes((MODELS / model / "model.toml").read_bytes())
    edit_manifest(tmp_path, lambda document: None)
    assert path.read_bytes() == (MODELS / model / "model.toml").read_bytes()
    assert read_manifest(path).versions


@pytest.mark.parametrize(
    ("text", "version", "reason"),
    [
        (TEXT, "c", "default_version is 'c'"),
        ("default_version = 3\n", "a", "must be text"),
        ("[", "a", "not valid TOML"),
    ],
    ids=["unknown version", "wrong before", "no TOML"],
)
def test_invalid_changes_are_rejected(
    text: str, version: str, reason: str, tmp_path: Path
) -> None:
    """The file stays unchanged, and no temporary file is left."""
    path = tmp_path / "model.toml"
    path.write_text(text)
    with pytest.raises(ManifestError, match=reason):
        edit_manifest(tmp_path, default_to(version))
    assert path.read_text() == text
    assert os.listdir(tmp_path) == ["model.toml"]


def test_a_layout_that_the_editor_cannot_handle_is_rejected(tmp_path: Path) -> None:
    """A table between dotted keys would capture the keys after it."""
    text = 'versions.a.file = "a.tflite"\nversions.b.file = "b.tflite"\n'
    (tmp_path / "model.toml").write_text(text)
    with pytest.raises(
        ManifestError,
        match=r"has a layout that no command can change; write \[table\] headers",
    ):
        edit_manifest(
            tmp_path,
            lambda document: document["versions"].__setitem__(
                "c", {"file": "c.tflite"}
            ),
        )
    assert (tmp_path / "model.toml").read_text() == text


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ManifestError, match=r"model\.toml cannot be written: No such file"
    ):
        edit_manifest(tmp_path / "gone", default_to("a"))


def test_labels_of_a_triton_configuration_stay(tmp_path: Path) -> None:
    """A new manifest replaces ``config.pbtxt``, so it repeats its labels."""
    (tmp_path / "config.pbtxt").write_text(
        'output [{ name: "y" label_filename: "names.txt" }]'
    )
    edit_manifest(tmp_path, default_to("onnx"))
    manifest = read_manifest(tmp_path / "model.toml")
    assert (manifest.labels, manifest.default_version) == ("names.txt", "onnx")
