"""Read and split users' labelled data, or refuse it in one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MODELS, STATE
from pocketserve_lab.compress.data import read_data
from pocketserve_lab.compress.recipe import load_data
from pocketserve_lab.compress.scores import Score, score_answers
from pocketserve_lab.convert.converter import ConversionError


def read(
    tmp_path: Path, model: str, data: Path, test: Path | None = None
) -> dict[str, Any]:
    """Read data for an embedded model's TFLite version, tried once for all tests."""
    document = {
        "models_dir": MODELS,
        "state_dir": STATE,
        "model": model,
        "version": "tflite",
    }
    return read_data(
        {
            **document,
            "data": data,
            "test": test,
            "folder": tmp_path,
        }
    )


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Write a folder with one picture per digit's folder."""
    for picture in (MODELS / "digits" / "samples").iterdir():
        (tmp_path / "data" / picture.stem).mkdir(parents=True)
        shutil.copyfile(picture, tmp_path / "data" / picture.stem / "one.png")
    return tmp_path / "data"


def test_a_folder_of_pictures(tmp_path: Path, pictures: Path) -> None:
    """Pictures are preprocessed like requests.

    A quarter is kept for measuring.
    """
    facts = read(tmp_path, "digits", pictures)
    assert (facts["train"], facts["test"]) == (8, 2)
    assert facts["rows"] == {"image": True}
    train, test = (
        load_data(tmp_path / f"{name}.npz", ("image",)) for name in ("train", "test")
    )
    assert train.inputs[0].shape == (8, 8, 8, 1)
    assert train.inputs[0].dtype == np.float32
    assert sorted([*train.labels, *test.labels]) == list(range(10))
    again = read(tmp_path, "digits", pictures)
    assert again["sha256"] == facts["sha256"]
    assert read(tmp_path, "digits", pictures, pictures)["test"] == 10


def test_a_table_of_numbers(tmp_path: Path) -> None:
    """Columns are found by name.

    The labels are the target's values.
    """
    names = ["sepal_length", "sepal_width", "petal_length"]
    lines = []
    for row in range(8):
        lines.append(f"{row},3.0,{row + 0.5},{row / 10}")
    (tmp_path / "rows.csv").write_text("\n".join([",".join([*names, "value"]), *lines]))
    assert read(tmp_path, "petals", tmp_path / "rows.csv")["train"] == 6
    data = load_data(tmp_path / "train.npz", ("features",))
    np.testing.assert_allclose(data.labels[:, 0], data.inputs[0][:, 0] / 10, rtol=1e-6)


def test_arrays(tmp_path: Path) -> None:
    """Arrays are inputs by name, with classes or numbers as labels."""
    np.savez(tmp_path / "d.npz", image=np.zeros((9, 8, 8, 1)), labels=np.arange(9))
    read(tmp_path, "digits", tmp_path / "d.npz")
    assert load_data(tmp_path / "train.npz", ("image",)).labels.dtype == np.int64
    np.savez(tmp_path / "d.npz", image=np.zeros((9, 8, 8, 1)), labels=np.ones(9))
    read(tmp_path, "digits", tmp_path / "d.npz")
    assert load_data(tmp_path / "train.npz", ("image",)).labels.shape == (7, 1)


IMAGES = np.zeros((9, 8, 8, 1), np.float32)
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"image": IMAGES}, "no array 'labels'"),
    "another input": (
        {"picture": IMAGES, "labels": np.arange(9)},
        "holds picture; the model takes image",
    ),
    "wrong shape": (
        {"image": IMAGES[:, :4], "labels": np.arange(9)},
        r"shape \[9, 4, 8, 1\]; for 9 labels .*\[9, 8,",
    ),
    "too few labels": ({"image": IMAGES, "labels": np.arange(8)}, r"for 8 labels"),
    "negative class": (
        {"image": IMAGES, "labels": np.full(9, -1)},
        "classes count from 0",
    ),
    "endless label": ({"image": IMAGES, "labels": np.full(9, np.nan)}, "finite floats"),
    "words": (
        {"image": IMAGES, "labels": np.full(9, "seven")},
        "whole numbers of classes",
    ),
    "few": (
        {"image": IMAGES[:7], "labels": np.arange(7)},
        "holds 7 samples; 8 are needed",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_mismatched_arrays_are_refused(case: str, tmp_path: Path) -> None:
    """The message names the file or array, and the expected form."""
    arrays, sentence = REFUSALS[case]
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(ConversionError, match=sentence):
        read(tmp_path, "digits", tmp_path / "d.npz")


def test_mismatched_files_are_refused(tmp_path: Path, pictures: Path) -> None:
    """They are a damaged archive, an unknown label, and pictures without labels."""
    (tmp_path / "d.npz").write_bytes(b"PK\3\4 nothing")
    with pytest.raises(ConversionError, match=r"d\.npz cannot be read"):
        read(tmp_path, "digits", tmp_path / "d.npz")
    (pictures / "7").rename(pictures / "eleven")
    with pytest.raises(
        ConversionError, match="the label 'eleven' is none of the model's"
    ):
        read(tmp_path, "digits", pictures)
    shutil.copyfile(pictures / "8" / "one.png", pictures / "unknown.png")
    with pytest.raises(
        ConversionError, match="has no label; a recipe trains on labelled samples"
    ):
        read(tmp_path, "digits", pictures)


def test_scores_of_classes_and_numbers() -> None:
    """Classes are counted, numbers measured.

    A loss has the right sign for both.
    """
    scores = np.array(
        [
            [0.9, 0.1],
            [0.2, 0.8],
            [0.6, 0.4],
            [0.7, 0.3],
        ]
    )[:, None]
    assert score_answers(scores, np.array([0, 1, 1, 0])) == Score("accuracy", 0.75, 4)
    assert score_answers(scores[:, :, 1:], np.array([0, 1, 1, 0])).value == 0.75
    numbers = score_answers(
        np.array([[1.0], [2.0]]), np.array([[2.0], [4.0]], np.float32)
    )
    assert numbers == Score("mean absolute error", 1.5, 2)
    assert numbers._replace(value=3.0).loss_since(numbers) == 1.0
    assert Score("accuracy", 0.5, 4).loss_since(Score("accuracy", 0.75, 4)) == 0.25
    with pytest.raises(
        ConversionError, match="answers 2 numbers a sample, and the labels have 1"
    ):
        score_answers(scores, np.ones((4, 1), np.float32))
