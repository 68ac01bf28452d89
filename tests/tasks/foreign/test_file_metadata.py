"""Metadata inside model files: each row of the tables of Windows ML and TFLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.runtimes import metadata, metadata_parts
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.foreign import tflite_metadata, windows_ml
from pocketserve.tasks.foreign.keys import Effect, Key, check_keys
from pocketserve.tasks.foreign.tables import TABLES
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.selection import select_task
from pocketserve.tasks.tensors import Tensors
from vision_models import facts, picture

LABELS = {"labels.txt": "cat\ndog\n"}
NORMALIZED = metadata_parts.Normalization((127.5,), (127.5,))
VALUES = {
    "Image.BitmapPixelFormat": ("Bgr8", "Rgba8"),
    "Image.ColorSpaceGamma": ("SRGB", "Linear"),
    "Image.NominalPixelRange": ("Normalized_1_1", "NominalRange_16_235"),
    "Image.*": ("", "rotated"),
}
"""An accepted value and a rejected one."""

APPLIED = ("Image.BitmapPixelFormat", "Image.NominalPixelRange")


def described(folder: Path, properties: dict[str, str]) -> Any:
    """Return the task of a picture classifier with these texts in its file."""
    return select_task(
        facts(folder, {"s": (1, 2)}, files=LABELS, properties=properties)
    )


def pixels(task: Any) -> Any:
    """Return the model's input for a picture with distinct channels."""
    (array,) = task.prepare(picture()).runs[0].values()
    return array


@pytest.mark.parametrize("row", windows_ml.TABLE.keys, ids=lambda row: row.path)
def test_windows_ml_fields(tmp_path: Path, row: Key) -> None:
    name = row.path.replace("*", "Orientation")
    good, bad = VALUES[row.path]
    if good:
        plain = described(tmp_path, {})
        changed = described(tmp_path, {name: good})
        assert changed.name == "image-classification"
        other = {"Image.NominalPixelRange": "NominalRange_0_255"}
        is_range = row.path in other
        reference = described(tmp_path, other) if is_range else plain
        assert np.array_equal(pixels(reference), pixels(changed)) == (not is_range)
    refused = described(tmp_path, {name: bad})
    assert isinstance(refused, Tensors)
    assert (
        f"the model file's metadata has settings that are not supported: {name} = '{bad}'"
        in refused.problem
    )


def test_texts_of_other_tools_are_descriptions(tmp_path: Path) -> None:
    assert (
        described(tmp_path, {"producer": "someone", "purpose": "Linear"}).name
        == "image-classification"
    )


UNITS: dict[str, metadata_parts.ProcessUnit] = {
    "Normalization": NORMALIZED,
    "ScoreCalibration": metadata_parts.ScoreCalibration("identity", 0.0),
    "ScoreThresholding": metadata_parts.ScoreThresholding(0.6),
    "BertTokenizer": metadata_parts.BertTokenizer(()),
    "SentencePieceTokenizer": metadata_parts.SentencePieceTokenizer((), ()),
    "RegexTokenizer": metadata_parts.RegexTokenizer(" ", ()),
}


def with_unit(folder: Path, row: Key | None) -> ModelFacts:
    """Return a picture classifier whose metadata have the row's unit."""
    model = facts(folder, {"s": (1, 2)}, files=LABELS)
    tensors = {
        "inputs": metadata.TensorMetadata("image"),
        "outputs": metadata.TensorMetadata("s"),
    }
    if row is not None:
        side, _, name = row.path.split(".")
        if name == "unknown":
            tensors[side] = tensors[side]._replace(unknown=("process_unit_7",))
        else:
            tensors[side] = tensors[side]._replace(process_units=(UNITS[name],))
    model.__dict__["metadata"] = metadata.ModelMetadata(
        inputs=(tensors["inputs"],), outputs=(tensors["outputs"],)
    )
    return model


@pytest.mark.parametrize("row", tflite_metadata.TABLE.keys, ids=lambda row: row.path)
def test_tflite_units(tmp_path: Path, row: Key) -> None:
    task = select_task(with_unit(tmp_path, row))

    if row.effect is Effect.UNSUPPORTED:
        assert isinstance(task, Tensors)
        place = row.path.replace("*", "0")
        assert (
            f"TFLite metadata has settings that are not supported: {place} = "
            in task.problem
        )
        return
    assert task.name == "image-classification"
    plain = select_task(with_unit(tmp_path, None))
    same_input = np.array_equal(pixels(plain), pixels(task))
    scores = [{"s": np.float32([[0.5, 0.7]])}]
    same_answer = plain.answer(scores, AnswerOptions(), None) == task.answer(
        scores, AnswerOptions(), None
    )
    changes = {
        "inputs.*.Normalization": (False, True),
        "outputs.*.ScoreThresholding": (True, False),
    }
    assert (same_input, same_answer) == changes.get(row.path, (True, True))


def test_an_output_with_an_identity_normalisation() -> None:
    unit = metadata_parts.Normalization((0.0,), (1.0,))
    output = metadata.TensorMetadata("s", process_units=(unit,))

    content = tflite_metadata.process_units_of(
        metadata.ModelMetadata(outputs=(output,))
    )

    assert check_keys(tflite_metadata.TABLE, content) == ((), ())


def test_the_table_lists_each_unit_of_the_reader() -> None:
    assert tflite_metadata.TABLE in TABLES
    rows = {row.path for row in tflite_metadata.TABLE.keys}
    for name in UNITS:
        assert {f"inputs.*.{name}", f"outputs.*.{name}"} <= rows
