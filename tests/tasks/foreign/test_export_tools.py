"""Exports of Teachable Machine, Lobe and Ultralytics: detection, and each row of their
tables.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.registry import FORMATS
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.foreign.exports import lobe, teachable_machine, ultralytics
from pocketserve.tasks.foreign.exports.properties import properties_beside
from pocketserve.tasks.foreign.keys import Effect, ForeignFile
from pocketserve.tasks.foreign.registry import unknown_keys
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.selection import select_task
from pocketserve.tensors import TensorSpec
from vision_models import facts, picture

IMAGE = TensorSpec("image", "FP32", (1, 32, 32, 3))
GREY = TensorSpec("image", "FP32", (1, 32, 32, 1))
NUMBERED = "0 Class 1\n1 Class 2\n2 Class 3\n"
PROJECT = {
    "tfjsVersion": "1.3.1",
    "packageVersion": "0.8.4",
    "packageName": "@teachablemachine/image",
    "userMetadata": {},
    "labels": ["a", "b", "c"],
    "imageSize": 32,
}
SIGNATURE = {
    "format": "tf_lite",
    "filename": "saved_model.tflite",
    "classes": {"Label": ["a", "b", "c"]},
    "export_model_version": 1,
}
METADATA = {
    "task": "detect",
    "stride": "32",
    "imgsz": "[32, 32]",
    "names": "{0: 'a', 1: 'b'}",
}


def exported(
    folder: Path,
    name: str,
    files: Mapping[str, Any],
    image: TensorSpec = IMAGE,
    outputs: Mapping[str, tuple[int, ...]] | None = None,
    properties: Mapping[str, str] | None = None,
) -> ModelFacts:
    """Return the facts of a model file of this name, with those added by a load."""
    model = facts(
        folder,
        outputs or {"scores": (1, 3)},
        files=files,
        image=image,
        properties=properties,
    )
    kind = next(kind for kind in FORMATS if name.lower().endswith(kind.suffixes))
    version = VersionEntry(kind.name, kind, model.entry.folder / name)
    # No file is opened, so readers of the format's own metadata find none.
    version = version._replace(format=kind._replace(metadata=None))
    model = dataclasses.replace(model, version=version)
    return dataclasses.replace(
        model, properties={**properties_beside(model), **model.properties}
    )


def preprocessing(model: ModelFacts) -> str:
    """Return the description of a picture's preprocessing."""
    return str(select_task(model).describe()["preprocessing"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["model_unquant.tflite", "keras_model.h5", "keras_Model.h5"]
)
def test_a_converted_project_is_recognised_by_file_names(
    tmp_path: Path, name: str
) -> None:
    model = exported(tmp_path, name, {"labels.txt": NUMBERED})

    assert "cropped to its middle" in preprocessing(model)
    assert "(pixel - 127.5) / 127.5" in preprocessing(model)
    assert model.assumed == []


def test_a_quantised_project_crops_and_keeps_pixel_values(tmp_path: Path) -> None:
    image = TensorSpec("image", "UINT8", (1, 32, 32, 3))
    model = exported(tmp_path, "model.tflite", {"labels.txt": NUMBERED}, image)

    assert "cropped to its middle" in preprocessing(model)
    assert "pixels from 0 to 255 as UINT8" in preprocessing(model)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("mobilenet.tflite", NUMBERED),
        ("model_unquant.tflite", "a\nb\nc\n"),
        ("model_unquant.tflite", "1 a\n2 b\n3 c\n"),
        ("model.tflite", NUMBERED),
    ],
)
def test_other_models_are_not_mistaken_for_a_project(
    tmp_path: Path, name: str, labels: str
) -> None:
    model = exported(tmp_path, name, {"labels.txt": labels})

    assert "pixel / 255" in preprocessing(model)
    assert model.assumed == ["pixels 0..1", "colours RGB", "resize stretch"]


def test_an_int8_model_is_not_mistaken_for_a_quantised_project(
    tmp_path: Path,
) -> None:
    image = TensorSpec("image", "INT8", (1, 32, 32, 3))
    model = exported(tmp_path, "model.tflite", {"labels.txt": NUMBERED}, image)

    assert teachable_machine.project_of(model) is None
    assert "cropped" not in preprocessing(model)


def test_a_page_project_has_labels_and_a_pixel_range(tmp_path: Path) -> None:
    task = select_task(exported(tmp_path, "m.onnx", {"metadata.json": PROJECT}))

    assert task.name == "image-classification"
    assert list(task.labels) == ["a", "b", "c"]  # type: ignore[attr-defined]
    assert "(pixel - 127) / 127" in preprocessing(
        exported(tmp_path, "m.onnx", {"metadata.json": PROJECT})
    )


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({**PROJECT, "packageName": "@teachablemachine/pose"}, "pose project"),
        (
            {"tfjsSpeechCommandsVersion": "0.4.0", "wordLabels": ["a", "b", "c"]},
            "sound project",
        ),
    ],
)
def test_unsupported_projects_are_reported(
    tmp_path: Path, metadata: dict[str, Any], word: str
) -> None:
    """A sound project's spectrogram has the shape of a grey picture."""
    image = TensorSpec("x", "FP32", (1, 43, 232, 1))
    task = select_task(exported(tmp_path, "m.onnx", {"metadata.json": metadata}, image))

    assert task.name == "tensors"
    assert word in task.problem  # type: ignore[attr-defined]
    with pytest.raises(Exception, match=word):
        task.prepare(picture())


def test_another_tools_metadata_json_is_ignored(tmp_path: Path) -> None:
    model = exported(
        tmp_path, "m.onnx", {"metadata.json": {"labels": ["a", "b", "c"], "flip": True}}
    )

    assert select_task(model).name == "tensors"
    assert unknown_keys(model) == {}


def test_lobe(tmp_path: Path) -> None:
    model = exported(tmp_path, "saved_model.tflite", {"signature.json": SIGNATURE})

    assert list(select_task(model).labels) == ["a", "b", "c"]  # type: ignore[attr-defined]
    assert "cropped to its middle" in preprocessing(model)
    assert model.assumed == []


def test_unsupported_ultralytics_tasks_are_reported(tmp_path: Path) -> None:
    metadata = {**METADATA, "task": "depth"}
    task = select_task(
        exported(
            tmp_path, "m.onnx", {}, outputs={"y": (1, 32, 32)}, properties=metadata
        )
    )

    assert task.name == "tensors"
    assert "depth" in task.problem  # type: ignore[attr-defined]


def build(folder: Path, table: ForeignFile, changes: Mapping[str, Any]) -> ModelFacts:
    """Return a model with the tool's usual file.

    Changes are given by dotted paths.
    """
    if table is ultralytics.TABLE:
        properties = {**METADATA, **{key: str(value) for key, value in changes.items()}}
        task = properties["task"]
        columns = {
            "pose": 4 + 2 + 51,
            "segment": 4 + 2 + 32,
            "obb": 7,
        }.get(task, 6)
        outputs: dict[str, tuple[int, ...]] = {"rows": (1, columns, 50)}
        if task == "segment":
            outputs["masks"] = (1, 32, 8, 8)
        if task == "classify":
            outputs = {"scores": (1, 2)}
        return exported(folder, "m.onnx", {}, outputs=outputs, properties=properties)
    content = json.loads(
        json.dumps(PROJECT if table is teachable_machine.TABLE else SIGNATURE)
    )
    for path, value in changes.items():
        *parents, key = path.split(".")
        inner = content
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[key] = value
    return exported(
        folder,
        "m.onnx",
        {table.name: content},
        GREY if changes.get("grayscale") else IMAGE,
    )


def outcome(model: ModelFacts) -> tuple[object, ...]:
    """Return a task's picture preprocessing and answer processing."""
    task = select_task(model)
    described = task.describe() if hasattr(task, "describe") else {}
    structure = task.structure() if hasattr(task, "structure") else {}
    form = str(task.form()) if hasattr(task, "form") else ""
    return task.name, described, structure, form, getattr(task, "problem", "")


CHANGES: dict[tuple[str, str], Mapping[str, Any]] = {
    ("metadata.json", "packageName"): {"packageName": "@teachablemachine/pose"},
    ("metadata.json", "tfjsSpeechCommandsVersion"): {
        "tfjsSpeechCommandsVersion": "0.4.0"
    },
    ("metadata.json", "labels"): {"labels": ["x", "y", "z"]},
    ("metadata.json", "grayscale"): {"grayscale": True},
    ("signature.json", "classes.Label"): {"classes.Label": ["x", "y", "z"]},
    ("signature.json", "export_model_version"): {"export_model_version": 2},
    (ultralytics.TABLE.name, "task"): {"task": "depth"},
    (ultralytics.TABLE.name, "names"): {"names": "{0: 'x', 1: 'y'}"},
    (ultralytics.TABLE.name, "kpt_shape"): {"task": "pose", "kpt_shape": "[17, 3]"},
    (ultralytics.TABLE.name, "kpt_names"): {
        "task": "pose",
        "kpt_names": "{0: ['p', 'q']}",
    },
    (ultralytics.TABLE.name, "head"): {"head": "RTDETRDecoder"},
}
"""One change of each key that is applied or unsupported."""

ELSEWHERE = {"imgsz", "channels", "end2end"}
"""Keys that complete the file or an output; the tests of TorchScript and of YOLO rows
change them.
"""

ROWS = [
    (table, row)
    for table in (teachable_machine.TABLE, lobe.TABLE, ultralytics.TABLE)
    for row in table.keys
]


@pytest.mark.parametrize(
    ("table", "row"), ROWS, ids=[f"{table.name} {row.path}" for table, row in ROWS]
)
def test_each_row_of_a_table_has_its_effect(
    tmp_path: Path, table: ForeignFile, row: Any
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "changed").mkdir()
    plain = outcome(build(tmp_path / "plain", table, {}))
    if row.effect is Effect.HARMLESS:
        assert (
            outcome(build(tmp_path / "changed", table, {row.path: "something else"}))
            == plain
        )
        return
    if row.path in ELSEWHERE:
        return
    changed = outcome(build(tmp_path / "changed", table, CHANGES[table.name, row.path]))

    assert changed != plain
    if row.effect is Effect.UNSUPPORTED:
        assert changed[0] == "tensors"
        assert row.path in str(changed[-1])


def test_an_unknown_key_is_reported(tmp_path: Path) -> None:
    model = exported(
        tmp_path, "m.onnx", {"metadata.json": {**PROJECT, "flipped": True}}
    )

    assert unknown_keys(model) == {"metadata.json": ("flipped",)}


V5 = {"stride": "32", "names": "['cat', 'dog']"}
NCHW = TensorSpec("images", "FP32", (1, 3, 32, 32))


@pytest.mark.parametrize(
    "names", ["['cat', 'dog']", "{0: 'cat', 1: 'dog'}", "('cat', 'dog')"]
)
def test_a_yolov5_detector_is_recognised_by_its_metadata(
    tmp_path: Path, names: str
) -> None:
    model = exported(
        tmp_path, "m.onnx", {}, NCHW, {"output0": (1, 60, 7)}, {**V5, "names": names}
    )
    task = select_task(model)
    rows = np.zeros((1, 60, 7), np.float32)
    rows[0, 0] = [16, 16, 8, 8, 0.9, 0.1, 0.95]

    prepared = task.prepare(picture(32, 32))
    (entry,) = task.answer([{"output0": rows}], AnswerOptions(), prepared.context)

    assert entry["label"] == "dog"
    assert entry["score"] == pytest.approx(0.9 * 0.95)
    assert "between bars" in preprocessing(model)
    assert model.assumed == []


def test_a_yolov5_classifier_is_normalised_and_gets_softmax(tmp_path: Path) -> None:
    model = exported(
        tmp_path,
        "m.onnx",
        {},
        NCHW,
        {"output0": (1, 2)},
        V5,
    )
    task = select_task(model)

    assert task.name == "image-classification"
    prepared = task.prepare(picture(32, 32))
    scores = {"output0": np.array([[0.0, np.log(3)]], np.float32)}
    best = task.answer([scores], AnswerOptions(), prepared.context)[0]
    assert (best["label"], best["score"]) == ("dog", pytest.approx(0.75))
    assert "cropped to its middle" in preprocessing(model)
    assert "(pixel - [123.675, 116.28, 103.53])" in preprocessing(model)


@pytest.mark.parametrize(
    "outputs",
    [
        {"output0": (1, 60, 39)},
        {"output0": (1, 7)},
    ],
)
def test_other_outputs_with_yolov5_metadata_are_tensors(
    tmp_path: Path, outputs: dict[str, tuple[int, ...]]
) -> None:
    model = exported(
        tmp_path,
        "m.onnx",
        {},
        NCHW,
        outputs,
        V5,
    )

    assert select_task(model).name == "tensors"


@pytest.mark.parametrize("size", ["64", "[64, 64]", "(64, 64)"])
def test_the_size_of_an_export_with_free_sides(tmp_path: Path, size: str) -> None:
    image = TensorSpec("images", "FP32", (1, 3, -1, -1))
    properties = {**METADATA, "imgsz": size}
    model = exported(
        tmp_path,
        "m.onnx",
        {},
        image,
        {"output0": (1, 6, 84)},
        properties,
    )

    assert "64x64" in preprocessing(model)


YAML = """description: Ultralytics YOLOv8n model trained on a dataset whose name is so long
  that it takes two lines
version: 8.3.0
stride: 32
task: {task}
imgsz:
- 32
- 32
names:
  0: 'no'
  1: it's a dog
args:
  nms: false
kpt_shape: [2, 3]
"""


@pytest.mark.parametrize(
    ("task", "columns", "expected"),
    [
        ("detect", 6, "object-detection"),
        ("pose", 11, "pose-estimation"),
        ("depth", 6, "tensors"),
    ],
)
def test_metadata_in_a_file_of_ultralytics(
    tmp_path: Path, task: str, columns: int, expected: str
) -> None:
    files = {"metadata.yaml": YAML.replace("{task}", task)}
    outputs = {"output0": (1, columns, 84)}
    model = exported(tmp_path, "m.onnx", files, outputs=outputs)

    selected = select_task(model)

    assert selected.name == expected
    assert model.assumed == []
    if expected == "object-detection":
        assert list(selected.labels) == ["no", "it's a dog"]  # type: ignore[attr-defined]
        assert "between bars" in preprocessing(model)
    if expected == "tensors":
        assert "depth" in selected.problem  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("names: &a [x]", "line 1 is not plain YAML"),
        ("library: other", ""),
    ],
)
def test_other_metadata_in_yaml_is_ignored(
    tmp_path: Path, content: str, note: str
) -> None:
    model = exported(tmp_path, "m.onnx", {"metadata.yaml": content})

    assert select_task(model).name == "tensors"
    assert (note in "".join(model.notes)) if note else (model.notes == [])
