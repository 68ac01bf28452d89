"""Triton's folders and their ``config.pbtxt``.

A configuration is applied, or is the reason not to serve a model.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve.repository.scan import scan
from pocketserve.repository.triton_config import (
    MAX_DEPTH,
    TextFormatError,
    parse,
    read_config,
)

DENSENET = """
name: "densenet_onnx"  # a comment
platform: "onnxruntime_onnx"
max_batch_size : 0
input [
  { name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW
    dims: [ 3, 224, 224 ] reshape { shape: [ 1, 3, 224, 224 ] } }
]
output [ { name: "fc6_1"; dims: [ 1000 ], label_filename: "densenet_labels.txt" } ]
"""
CONTROLS = 'sequence_batching { max_sequence_idle_microseconds: 5000000 control_input [ { name: "START" } ] }'


def problem(folder: Path, text: str) -> str:
    """Return the reason why a model with this configuration is not served."""
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "config.pbtxt").write_text(text)
    (folder / "m" / "1" / "model.onnx").write_bytes(b"\x08\x01")
    return scan(folder)["m"].problem or ""


def test_fields_of_every_form() -> None:
    config = parse(DENSENET)
    assert config["name"] == ["densenet_onnx"]
    assert config["max_batch_size"] == ["0"]
    assert config["input"][0]["dims"] == ["3", "224", "224"]
    assert config["input"][0]["reshape"] == [{"shape": ["1", "3", "224", "224"]}]


def test_labels_are_used(tmp_path: Path) -> None:
    assert problem(tmp_path, DENSENET) == ""
    entry = scan(tmp_path)["m"]
    assert entry.manifest.labels == "densenet_labels.txt"
    assert list(entry.versions) == ["1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('backend: "python"', "Triton's Python backend"),
        ("ensemble_scheduling { step [ { } ] }", "ensembles"),
        (CONTROLS, "controls of sequences"),
        ("input [", "ends before a value"),
        ("input { ", "never closed"),
        ("}", "never opened"),
        ("{", "a field's name is expected"),
        ("a: ]", "a value is expected"),
        ("a: `", "line 1 is not a protocol"),
        ("\n\na: 'x", "line 3 is not a protocol"),
        ("a {" * (MAX_DEPTH + 2), "nest more than"),
    ],
)
def test_unsupported_fields_are_reported(
    tmp_path: Path, text: str, reason: str
) -> None:
    found = problem(tmp_path, text)
    assert reason in found
    assert found.startswith("m/config.pbtxt")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_line_ends_of_all_systems(tmp_path: Path, end: str) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(
        end.join(["# a comment", 'output { label_filename: "l.txt" }']).encode()
    )
    assert read_config(path).labels == "l.txt"
    assert read_config(path).problem is None
    path.write_bytes(end.join(["# a comment", "`"]).encode())
    assert "line 2 is not a protocol" in str(read_config(path).problem)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/../../b", ""])
def test_labels_outside_the_folder_are_ignored(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(f'output [ {{ label_filename: "{name}" }} ]')
    assert read_config(path).labels is None
    assert read_config(path).problem is None


@pytest.mark.parametrize(
    "text",
    [
        "sequence_batching { direct { } }",
        "backend: [] output { label_filename: [] }",
        "",
    ],
)
def test_harmless_configurations_are_served(tmp_path: Path, text: str) -> None:
    assert problem(tmp_path, text) == ""


@given(st.text(alphabet='ab:{}[],;"\\#\n .1', max_size=60))
def test_random_texts_are_parsed_or_rejected(text: str) -> None:
    try:
        parsed = parse(text)
    except TextFormatError:
        return
    assert all(isinstance(values, list) for values in parsed.values())
