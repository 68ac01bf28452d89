"""YOLO models with masks, rotated boxes and key points."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.tasks.base import NO_HINTS, AnswerOptions
from pocketserve.tasks.selection import select_task
from pocketserve.tasks.vision.yolo.rows import (
    RowReader,
    corners_of,
    mask_inside,
    suppress_rotated,
)
from pocketserve.tensors import Array, TensorSpec
from vision_models import facts, picture

IMAGE = TensorSpec("images", "FP32", (1, 3, 64, 64))
NAMES = "{0: 'ship', 1: 'plane'}"


def answer(
    folder: Path,
    task: str,
    outputs: Mapping[str, Array],
    options: Any = None,
    manifest: Any = None,
    shapes: Any = None,
    **more: str,
) -> list[Any]:
    """Return the answer to a picture of 128x64 pixels.

    A letterbox halves it and adds bars of 16.

    Args:
        shapes: output shapes declared by the model file; None for the real ones.
    """
    properties = {
        "task": task,
        "stride": "32",
        "imgsz": "[64, 64]",
        "names": NAMES,
        **more,
    }
    shapes = shapes or {name: array.shape for name, array in outputs.items()}
    model = select_task(
        facts(folder, shapes, manifest, image=IMAGE, properties=properties)
    )
    prepared = model.prepare(picture(128, 64))
    values = options or {}
    return list(model.answer([outputs], AnswerOptions(values=values), prepared.context))


def raw(rows: list[list[float]], count: int = 40) -> Array:
    """Return rows as columns of an output, followed by empty ones."""
    table = np.zeros((1, len(rows[0]), count), np.float32)
    table[0, :, : len(rows)] = np.array(rows).T
    return table


def final(rows: list[list[float]], count: int = 40) -> Array:
    """Return the rows of a model that drops overlapping boxes itself."""
    table = np.zeros((1, count, len(rows[0])), np.float32)
    table[0, : len(rows)] = rows
    return table


def mask_of(entry: Mapping[str, Any]) -> Array:
    """Return an entry's mask as pixels."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(entry["mask"]))))


def test_rotated_boxes_have_corners(tmp_path: Path) -> None:
    (entry,) = answer(
        tmp_path, "obb", {"rows": raw([[32, 32, 20, 10, 0.1, 0.9, math.pi / 2]])}
    )

    assert (entry["label"], entry["score"]) == ("plane", pytest.approx(0.9))
    assert {(point["x"], point["y"]) for point in entry["corners"]} == {
        (54, 12),
        (74, 12),
        (54, 52),
        (74, 52),
    }
    assert entry["box"] == {
        "x": 54,
        "y": 12,
        "width": 20,
        "height": 40,
    }


def test_crossing_rotated_boxes_are_both_returned(tmp_path: Path) -> None:
    flat = [32, 32, 40, 4, 0.9, 0, 0]
    upright = [32, 32, 40, 4, 0.8, 0, math.pi / 2]

    assert len(answer(tmp_path, "obb", {"rows": raw([flat, upright, flat])})) == 2


def test_a_model_that_drops_boxes_itself(tmp_path: Path) -> None:
    row = [32, 32, 20, 10, 0.9, 1, 0.0]

    assert len(answer(tmp_path, "obb", {"rows": final([row, row])})) == 2


@pytest.mark.parametrize(
    "shape",
    [
        (1, 40, 6),
        (1, -1, -1),
    ],
)
def test_a_model_that_drops_boxes_itself_with_an_open_shape(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """If the output's shape is open, only the metadata says so."""
    row = [22, 27, 42, 37, 0.9, 1]
    entries = answer(
        tmp_path,
        "detect",
        {"rows": final([row, row])},
        shapes={"rows": shape},
        end2end="True",
    )

    assert len(entries) == 2
    assert entries[0]["label"] == "plane"
    assert entries[0]["box"] == {
        "x": 44,
        "y": 22,
        "width": 40,
        "height": 20,
    }


def test_a_manifests_overlap_applies_to_a_model_that_drops_boxes_itself(
    tmp_path: Path,
) -> None:
    row = [32, 32, 20, 10, 0.9, 1, 0.0]
    manifest = {
        "task": "object-detection",
        "detection": {"format": "yolov8-obb", "iou": 0.5},
    }

    assert (
        len(answer(tmp_path, "obb", {"rows": final([row, row])}, manifest=manifest))
        == 1
    )


def test_an_overlap_of_zero_in_a_manifest_is_not_the_default(tmp_path: Path) -> None:
    left = [30, 32, 20, 10, 0.9, 0, 0]
    right = [40, 32, 20, 10, 0.8, 0, 0]
    outputs = {"rows": raw([left, right])}
    manifest = {
        "task": "object-detection",
        "detection": {"format": "yolov8-obb", "iou": 0},
    }

    assert len(answer(tmp_path, "obb", outputs)) == 2
    assert len(answer(tmp_path, "obb", outputs, manifest=manifest)) == 1


def test_masks_are_sent_on_request(tmp_path: Path) -> None:
    """The first prototype is the left half of the input, the second its right half."""
    prototypes = np.full((1, 2, 16, 16), -1, np.float32)
    prototypes[0, 0, :, :8] = 1
    prototypes[0, 1, :, 8:] = 1
    outputs = {"rows": raw([[32, 32, 32, 16, 0.9, 0.1, 1, 0]]), "masks": prototypes}
    (plain,) = answer(tmp_path, "segment", outputs)
    (entry,) = answer(tmp_path, "segment", outputs, {"mask": "png"})

    assert set(entry) - set(plain) == {"mask", "mask_box"}
    assert (
        entry["box"]
        == entry["mask_box"]
        == {
            "x": 32,
            "y": 16,
            "width": 64,
            "height": 32,
        }
    )
    mask = mask_of(entry)
    assert mask.shape == (16, 32)
    assert mask[:, :15].all()
    assert not mask[:, 17:].any()


@pytest.mark.parametrize("axis", [1, 3])
def test_prototypes_in_both_orders(tmp_path: Path, axis: int) -> None:
    prototypes = np.moveaxis(np.ones((1, 2, 16, 16), np.float32), 1, axis)
    outputs = {"rows": raw([[32, 32, 32, 16, 0.9, 0.1, 1, 0]]), "masks": prototypes}
    (entry,) = answer(tmp_path, "segment", outputs, {"mask": "png"})

    assert mask_of(entry).all()


def test_a_mask_excludes_the_bars(tmp_path: Path) -> None:
    outputs = {
        "rows": raw([[32, 32, 64, 64, 0.9, 0, 1]]),
        "masks": np.ones((1, 1, 16, 16), np.float32),
    }
    (entry,) = answer(tmp_path, "segment", outputs, {"mask": "png"})

    assert entry["mask_box"] == {
        "x": 0,
        "y": 0,
        "width": 128,
        "height": 64,
    }


def test_a_model_without_prototypes_is_served_as_tensors(tmp_path: Path) -> None:
    properties = {
        "task": "segment",
        "stride": "32",
        "imgsz": "[64, 64]",
        "names": NAMES,
    }
    task = select_task(
        facts(tmp_path, {"rows": (1, 38, 40)}, image=IMAGE, properties=properties)
    )

    assert task.name == "tensors"
    assert "masks" in task.problem  # type: ignore[attr-defined]


def test_key_points(tmp_path: Path) -> None:
    rows = [[32, 32, 20, 10, 0.1, 0.9, 24, 32, 0.5, 40, 36, 0.7]]
    names = {"kpt_shape": "[2, 3]", "kpt_names": "{0: ['bow', 'stern']}"}
    (entry,) = answer(tmp_path, "pose", {"rows": raw(rows)}, **names)

    assert entry["label"] == "plane"
    assert entry["box"] == {
        "x": 44,
        "y": 22,
        "width": 40,
        "height": 20,
    }
    first, second = entry["keypoints"]
    assert first["label"] == "bow"
    assert first["x"] == 48
    assert first["y"] == 32
    assert second["label"] == "stern"
    assert second["x"] == 80
    assert second["y"] == 40
    assert [first["score"], second["score"]] == pytest.approx([0.5, 0.7])


def test_key_points_without_scores(tmp_path: Path) -> None:
    (entry,) = answer(
        tmp_path,
        "pose",
        {"rows": raw([[32, 32, 20, 10, 0.9, 0, 24, 32]])},
        kpt_shape="[1, 2]",
    )

    assert entry["keypoints"] == [
        {"label": "0", "index": 0, "x": 48, "y": 32, "score": pytest.approx(0.9)}
    ]


def test_key_points_of_a_model_that_drops_boxes_itself(tmp_path: Path) -> None:
    """Its boxes are given by corners."""
    row = [22, 27, 42, 37, 0.9, 1, 24, 32, 0.5]
    entries = answer(
        tmp_path,
        "pose",
        {"rows": final([row, row])},
        kpt_shape="[1, 3]",
        end2end="True",
    )

    assert len(entries) == 2
    assert entries[0]["box"] == {
        "x": 44,
        "y": 22,
        "width": 40,
        "height": 20,
    }


@pytest.mark.parametrize("shape", ["[0, 3]", "[1, 9]", "'x'", "[100000000, 3]", "("])
def test_invalid_shapes_of_key_points_are_ignored(tmp_path: Path, shape: str) -> None:
    properties = {
        "task": "pose",
        "stride": "32",
        "names": "{0: 'person'}",
        "kpt_shape": shape,
    }
    task = select_task(
        facts(tmp_path, {"rows": (1, 56, 40)}, image=IMAGE, properties=properties)
    )

    assert len(task.form().keypoints) == 17  # type: ignore[attr-defined]


def test_rt_detr_rows_are_untransposed_ratios(tmp_path: Path) -> None:
    rows = np.zeros((1, 40, 6), np.float32)
    rows[0, 3] = [0.5, 0.5, 0.25, 0.25, 0.1, 0.9]
    (entry,) = answer(tmp_path, "detect", {"rows": rows}, head="RTDETRDecoder")

    assert (entry["label"], entry["index"]) == ("plane", 1)
    assert entry["box"] == {
        "x": 48,
        "y": 24,
        "width": 32,
        "height": 16,
    }


def test_ratios_and_pixels_give_the_same_box() -> None:
    reader = RowReader(TensorSpec("rows", "FP32", (1, 7, 2)), 1, 2)
    pixels = raw([[32, 16, 20, 10, 0.9, 0, 0]], 2)
    ratios = raw([[0.5, 0.25, 0.3125, 0.15625, 0.9, 0, 0]], 2)

    assert np.allclose(
        reader.read(pixels, (64, 64), 0.5).boxes,
        reader.read(ratios, (64, 64), 0.5).boxes,
    )


def test_non_finite_rows_are_dropped() -> None:
    reader = RowReader(TensorSpec("rows", "FP32", (1, 7, 2)), 1, 2)
    rows = raw([[32, 16, math.nan, 10, 0.9, 0, 0], [32, 16, 20, 10, 0.8, 0, 0]], 2)

    assert reader.read(rows, (64, 64), 0.5).scores.tolist() == pytest.approx([0.8])


@pytest.mark.parametrize(
    "shape",
    [
        (1, 5, 9),
        (9,),
        (2, 7, 9),
    ],
)
def test_outputs_without_such_rows(shape: tuple[int, ...]) -> None:
    reader = RowReader(TensorSpec("rows", "FP32", shape), 1, 2)

    with pytest.raises(ValueError, match="rows"):
        reader.read(np.zeros(shape, np.float32), (64, 64), 0.5)


def test_a_rotated_box_suppresses_only_similar_ones_of_its_class() -> None:
    boxes = np.array(
        [
            [30, 30, 20, 10.0],
            [31, 30, 20, 10],
            [31, 30, 20, 10],
        ]
    )

    kept = suppress_rotated(boxes, np.zeros(3), np.array([0, 0, 1]), 0.7, 10)
    assert kept.tolist() == [0, 2]


def test_corners_of_an_unrotated_box() -> None:
    corners = corners_of(np.array([[10, 20, 4, 2.0]]), np.array([0.0]))

    assert sorted(map(tuple, corners[0].tolist())) == [
        (8, 19),
        (8, 21),
        (12, 19),
        (12, 21),
    ]


def test_a_mask_is_interpolated_between_the_centers_of_cells() -> None:
    prototypes = np.array([[[1.0, -1.0]]])

    assert mask_inside(np.array([1.0]), prototypes, (8, 1), (0, 0, 8, 1)).tolist() == [
        [True] * 4 + [False] * 4
    ]


@pytest.mark.parametrize("task", ["obb", "segment"])
def test_the_answer_is_drawn(tmp_path: Path, task: str) -> None:
    outputs = {"rows": raw([[32, 32, 20, 10, 0.1, 0.9, 0.5]])}
    if task == "segment":
        outputs["masks"] = np.ones((1, 1, 16, 16), np.float32)
    properties = {
        "task": task,
        "stride": "32",
        "imgsz": "[64, 64]",
        "names": NAMES,
    }
    shapes = {name: array.shape for name, array in outputs.items()}
    model: Any = select_task(
        facts(tmp_path, shapes, image=IMAGE, properties=properties)
    )
    context = model.prepare(picture(128, 64)).context
    entries = model.answer([outputs], AnswerOptions(), context)
    drawn = model.annotate(picture(128, 64), NO_HINTS, [outputs], entries, context)
    empty = model.annotate(picture(128, 64), NO_HINTS, [outputs], [], context)

    assert drawn.startswith(b"\x89PNG")
    assert drawn != empty
