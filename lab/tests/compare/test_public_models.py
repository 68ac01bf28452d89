"""Compare scores of public models with those of independent programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from pocketserve.cli import main

pytestmark = [pytest.mark.assets, pytest.mark.live]

BOXES = """file,label,x,y,width,height
cats_and_dogs.jpg,cat,80,400,364,200
cats_and_dogs.jpg,dog,390,216,254,384
cats_and_dogs.jpg,dog,614,152,296,448
cats_and_dogs.jpg,cat,880,408,200,192
astronaut.png,person,12,4,377,501
chelsea.png,cat,0,0,440,299
"""
LABELS = """file,label
burger.jpg,cheeseburger
chelsea.png,tabby
coffee.png,espresso
rocket.jpg,missile
"""


@pytest.fixture
def accuracy(assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that scores a TFLite asset on pictures: ``accuracy(file,
    truth)``.
    """

    def run(file: str, truth: str) -> dict[str, Any]:
        (tmp_path / "models").mkdir()
        shutil.copy(
            assets / "models" / "tflite" / file, tmp_path / "models" / "m.tflite"
        )
        data = tmp_path / "data"
        data.mkdir(exist_ok=True)
        (data / "labels.csv").write_text(truth)
        for name in {line.split(",")[0] for line in truth.splitlines()[1:]}:
            shutil.copy(assets / "inputs" / "images" / name, data)
        words = [
            "compare",
            "m",
            "--models-dir",
            str(tmp_path / "models"),
            "--data",
            str(data),
            "--seconds",
            "0.2",
        ]
        assert main([*words, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)["versions"][
            "tflite"
        ]["accuracy"]
        return document

    return run


def test_boxes_are_scored_like_pycocotools(accuracy: Any) -> None:
    """F1 is 3 matches of 14, 1 of 11 and 1 of 3, counted by hand."""
    result = accuracy("coco_ssd_mobilenet_v1_1.0_quant.tflite", BOXES)
    assert result["figures"] == pytest.approx(
        {"mAP at 0.5": 0.70594, "mAP": 0.64139}, abs=0.02
    )
    # Releases of the runtime round this int8 model differently: a box more or less at
    # the threshold.
    assert result["scores"] == pytest.approx(
        [
            6 / 14,
            2 / 11,
            2 / 3,
        ],
        abs=0.17,
    )


def test_masks_are_scored(accuracy: Any, assets: Path, tmp_path: Path) -> None:
    """The pixels of the model's own mask are ten times the class."""
    with PIL.Image.open(
        assets / "inputs" / "images" / "segmentation_golden_rotation0.png"
    ) as golden:
        numbers = np.array(golden) // 10
    (tmp_path / "data").mkdir()
    PIL.Image.fromarray(numbers).save(tmp_path / "data" / "truth.png")
    result = accuracy(
        "deeplabv3.tflite", "file,mask\nsegmentation_input_rotation0.jpg,truth.png\n"
    )
    assert result["value"] > 0.99
    assert result["metric"] == "IoU"


def test_classes_are_scored(accuracy: Any) -> None:
    """Two of four answers are right, a third is within five, and six classes are
    involved.
    """
    result = accuracy("mobilenet_v1_0.25_224_float_metadata.tflite", LABELS)
    assert result["metric"] == "top-1"
    assert result["value"] == 0.5
    assert result["figures"] == pytest.approx({"top-5": 0.75, "F1": 2 / 6})
