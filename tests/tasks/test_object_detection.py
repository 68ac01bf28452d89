"""Object detection gives the same boxes for every layout of outputs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.registry import FORMATS
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.model_facts import properties_of
from pocketserve.tasks.selection import select_task
from pocketserve.tasks.vision import object_detection
from pocketserve.tasks.vision.boxes import (
    decode_anchors,
    generate_anchors,
    overlap,
    suppress,
    to_corners,
)
from pocketserve.tasks.vision.detection_options import AnchorOptions
from pocketserve_wire import ApiError, ErrorCode
from vision_models import facts, picture

pytest.importorskip("PIL.Image", reason="pictures need Pillow")
SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=80,
)

CORNERS = np.array(
    [
        [0.1, 0.2, 0.5, 0.6],
        [0.4, 0.5, 0.9, 0.8],
        [0.11, 0.2, 0.5, 0.61],
        [0, 0, 1, 1],
    ]
)
"""Left, top, right, bottom as ratios: the third nearly repeats the first, and the last
is empty.
"""
SCORES = np.array(
    [
        [0.9, 0.05],
        [0.1, 0.8],
        [0.7, 0.0],
        [0.01, 0.02],
    ]
)
LOGITS = np.log(SCORES.clip(1e-6) / (1 - SCORES.clip(1e-6)))
YXYX = CORNERS[:, [1, 0, 3, 2]]
CENTER = np.concatenate(
    [(CORNERS[:, :2] + CORNERS[:, 2:]) / 2, CORNERS[:, 2:] - CORNERS[:, :2]], axis=1
)
PIXELS = np.array([200, 100, 200, 100])
WANTED = [("a", 0, 0.9, (40, 80, 160, 160)), ("b", 1, 0.8, (160, 200, 200, 120))]
"""On a picture of 400 x 400."""
ANCHORS = np.array(
    [
        [0.5, 0.5, 0.4, 0.2],
        [0.3, 0.3, 0.5, 0.5],
        [0.5, 0.5, 1, 1],
        [0.2, 0.2, 0.2, 0.2],
    ]
)
RAW = np.concatenate(
    [
        (CENTER[:, [1, 0]] - ANCHORS[:, :2]) / ANCHORS[:, 2:] * 10,
        np.log(CENTER[:, [3, 2]] / ANCHORS[:, 2:]) * 5,
    ],
    axis=1,
)
ROWS5 = np.concatenate(
    [
        CENTER * PIXELS,
        np.ones((4, 1)),
        SCORES,
    ],
    axis=1,
)
ROWS8 = np.concatenate([CENTER * PIXELS, SCORES], axis=1).T
KEPT = [0, 1]
ROWS10 = np.concatenate(
    [
        CORNERS * PIXELS,
        SCORES.max(1)[:, None],
        SCORES.argmax(1)[:, None],
    ],
    axis=1,
)[KEPT]
EMPTY = np.log(1 - SCORES.sum(axis=1, keepdims=True).clip(max=0.999))

Arrays = dict[str, Any]
LAYOUTS: dict[str, tuple[dict[str, Any], Arrays]] = {
    "the operator": (
        {},
        {
            "p": YXYX[KEPT],
            "p:1": np.array([0.0, 1.0]),
            "p:2": np.array([0.9, 0.8]),
            "p:3": np.array(2.0),
        },
    ),
    "TensorFlow 2": (
        {},
        {
            "s:0": np.array([0.9, 0.8]),
            "s:1": YXYX[KEPT],
            "s:2": np.array(2.0),
            "s:3": np.array([0.0, 1.0]),
        },
    ),
    "told by names": (
        {},
        {
            "num_detections": np.array(2.0),
            "detection_scores": np.array([0.9, 0.8]),
            "detection_classes": np.array([0.0, 1.0]),
            "detection_boxes": YXYX[KEPT],
        },
    ),
    "among others": (
        {},
        {
            "detection_anchor_indices": np.array([1.0, 2.0]),
            "detection_boxes": YXYX[KEPT],
            "detection_classes": np.array([0.0, 1.0]),
            "detection_multiclass_scores": SCORES,
            "detection_scores": np.array([0.9, 0.8]),
            "num_detections": np.array(2.0),
            "raw_detection_boxes": YXYX,
            "raw_detection_scores": SCORES,
        },
    ),
    "torchvision": (
        {"format": "postprocess", "box_type": "boundaries"},
        {
            "boxes": CORNERS[KEPT] * PIXELS,
            "labels": np.array([0.0, 1.0]),
            "scores": np.array([0.9, 0.8]),
        },
    ),
    "told by numbers": (
        {},
        {
            "p": YXYX[KEPT],
            "p:1": np.array([0.9, 0.8]),
            "p:2": np.array([0.0, 1.0]),
            "p:3": np.array(2.0),
        },
    ),
    "count cuts": (
        {},
        {
            "p": YXYX,
            "p:1": np.array([0.0, 1, 0, 0]),
            "p:2": np.array([0.9, 0.8, 0.7, 0.6]),
            "p:3": np.array(2.0),
        },
    ),
    "yolov5": ({"format": "yolov5"}, {"o": ROWS5}),
    "yolov5 ratios": (
        {"format": "yolov5"},
        {"o": ROWS5 / np.array([*PIXELS, 1, 1, 1])},
    ),
    "yolov8": ({"format": "yolov8"}, {"o": ROWS8}),
    "yolov8 ratios": (
        {"format": "yolov8", "coordinates": "ratio"},
        {"o": ROWS8 / np.array([[*PIXELS, 1, 1]]).T},
    ),
    "yolov10": ({"format": "yolov10"}, {"o": ROWS10}),
    "finished boxes": (
        {"format": "ssd", "box_type": "boundaries"},
        {"scores": SCORES, "boxes": CORNERS},
    ),
    "centers": (
        {"format": "ssd", "box_type": "center"},
        {"boxes": CENTER, "scores": SCORES},
    ),
    "upper left": (
        {"format": "ssd", "box_type": "upper_left", "box_order": [1, 0, 3, 2]},
        {
            "scores": SCORES,
            "boxes": np.concatenate([CORNERS[:, :2], CENTER[:, 2:]], axis=1)[
                :, [1, 0, 3, 2]
            ],
        },
    ),
    "raw": (
        {"format": "ssd", "activation": "sigmoid", "anchors_file": "a.csv"},
        {"boxes": RAW, "scores": LOGITS},
    ),
    "raw, linear": (
        {
            "format": "ssd",
            "anchors_file": "a.csv",
            "exponential": False,
            "box_scale": [10, 10, 5, 5],
        },
        {
            "boxes": np.concatenate(
                [RAW[:, :2], CENTER[:, [3, 2]] / ANCHORS[:, 2:] * 5], axis=1
            ),
            "scores": SCORES,
        },
    ),
    "with a background": (
        {"format": "ssd", "background": True, "box_type": "boundaries"},
        {
            "boxes": CORNERS,
            "scores": np.concatenate(
                [1 - SCORES.sum(1, keepdims=True), SCORES], axis=1
            ),
        },
    ),
    "detr": (
        {"format": "detr"},
        {
            "pred_boxes": CENTER[KEPT],
            "logits": np.concatenate([np.log(SCORES.clip(1e-6)), EMPTY], axis=1)[KEPT],
        },
    ),
}


def shaped(arrays: Arrays) -> Arrays:
    """Return float32 outputs with a batch dimension."""
    return {
        name: np.asarray(array, np.float32)[np.newaxis]
        for name, array in arrays.items()
    }


def detector(folder: Path, case: str, **more: Any) -> tuple[Any, Arrays]:
    """Return the task for a layout, and the outputs of one run."""
    options, arrays = LAYOUTS[case]
    outputs = shaped(arrays)
    lines = "\n".join(",".join(map(str, row)) for row in ANCHORS)
    files = {"labels.txt": "a\nb\n", "a.csv": lines}
    manifest = {"task": "object-detection", "labels": "labels.txt"}
    if options or more:
        manifest["detection"] = {**options, **more}
    shapes = {name: array.shape for name, array in outputs.items()}
    return select_task(facts(folder, shapes, manifest, files)), outputs


def boxes_of(entries: list[dict[str, Any]]) -> list[Any]:
    """Return rounded entries, comparable with WANTED."""
    return [
        (
            entry["label"],
            entry["index"],
            pytest.approx(entry["score"], abs=0.06),
            tuple(
                pytest.approx(entry["box"][key], abs=0.1)
                for key in ("x", "y", "width", "height")
            ),
        )
        for entry in entries
    ]


@pytest.mark.parametrize("case", LAYOUTS)
def test_each_layout_gives_the_same_boxes(tmp_path: Path, case: str) -> None:
    """Two objects in pixels, the better one first, without the duplicate."""
    task, outputs = detector(tmp_path, case)
    prepared = task.prepare(picture())
    found = task.answer([outputs], AnswerOptions(), prepared.context)
    assert boxes_of(found) == WANTED


def test_the_operator_needs_no_manifest(tmp_path: Path) -> None:
    """The shapes of its four outputs suffice.

    Three outputs do not.
    """
    shapes = {
        "a": (1, 10, 4),
        "b": (1, 10),
        "c": (1, 10),
        "d": (1,),
    }
    assert select_task(facts(tmp_path, shapes)).name == "object-detection"
    shapes.pop("d")
    assert select_task(facts(tmp_path, shapes)).name == "tensors"


def test_request_parameters(tmp_path: Path) -> None:
    """Threshold, number of entries and overlap."""
    task, outputs = detector(tmp_path, "yolov8")
    context = task.prepare(picture()).context

    def count(
        top_k: int | None = None, threshold: float | None = None, **values: Any
    ) -> int:
        return len(
            task.answer(
                [outputs], AnswerOptions(top_k, threshold, values=values), context
            )
        )

    assert [
        count(),
        count(top_k=1),
        count(threshold=0.85),
        count(threshold=0.95),
    ] == [
        2,
        1,
        1,
        0,
    ]
    assert [
        count(iou=1.0),
        count(iou=0.5),
        count(iou=0.0),
    ] == [3, 2, 2]
    operator, outputs = detector(tmp_path, "count cuts")
    assert (
        len(operator.answer([outputs], AnswerOptions(values={"iou": 0.0}), context))
        == 2
    )


def test_ways_of_resizing(tmp_path: Path) -> None:
    """A letterbox's bars are subtracted.

    A crop's boxes lie in the visible part.
    """
    # The part of a 200 x 100 input that a square picture fills.
    corners = np.array([[0.25, 0.0, 0.75, 1.0]])
    for how, wanted in (
        ("letterbox", (0, 0, 400, 400)),
        ("crop", (100, 100, 200, 200)),
        ("stretch", (100, 0, 200, 400)),
    ):
        manifest = {
            "task": "object-detection",
            "image": {"resize": how},
            "detection": {"format": "ssd", "box_type": "boundaries"},
        }
        task = select_task(
            facts(tmp_path, {"boxes": (1, 1, 4), "scores": (1, 1, 1)}, manifest)
        )
        outputs = shaped({"boxes": corners, "scores": np.array([[0.9]])})
        (entry,) = task.answer(
            [outputs], AnswerOptions(), task.prepare(picture()).context
        )
        assert tuple(entry["box"].values()) == wanted, how


def test_nan_and_infinities_are_no_objects(tmp_path: Path) -> None:
    task, outputs = detector(tmp_path, "finished boxes")
    context = task.prepare(picture()).context
    outputs["scores"][0, 0] = np.nan
    outputs["boxes"][0, 1] = np.inf
    outputs["boxes"][0, 2] = np.nan
    assert task.answer([outputs], AnswerOptions(threshold=0.1), context) == []
    (tmp_path / "other").mkdir()
    task, outputs = detector(tmp_path / "other", "finished boxes")
    assert task.answer([outputs], AnswerOptions(threshold=0.1), context)
    outputs["scores"][:] = np.inf
    assert task.answer([outputs], AnswerOptions(threshold=0.1), context) == []


FAULTS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], str]] = {
    "no format": ({}, {"o": (1, 84, 8400)}, "needs \\[detection\\] format"),
    "unknown name": (
        {"format": "ssd", "boxes": "x"},
        {"boxes": (1, 4, 4)},
        "names 'x'; the model has 'boxes'",
    ),
    "no scores": (
        {"format": "ssd"},
        {"boxes": (1, 4, 4)},
        "detection.scores must name",
    ),
    "no table": (
        {"format": "yolov8"},
        {"o": (1, 84)},
        "needs an output of three dimensions",
    ),
    "no anchors": (
        {"format": "ssd", "anchors_file": "b.csv"},
        {"boxes": (1, 4, 4), "scores": (1, 4, 2)},
        "anchors_file",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_invalid_manifests_are_rejected(tmp_path: Path, case: str) -> None:
    """Each error names the key."""
    options, shapes, part = FAULTS[case]
    with pytest.raises(ModelLoadError, match=part):
        select_task(
            facts(tmp_path, shapes, {"task": "object-detection", "detection": options})
        )


def test_anchors_behind_a_link(tmp_path: Path) -> None:
    """The link may point within the model's folder.

    The error names a link out of it.
    """
    outputs = {"boxes": (1, 4, 4), "scores": (1, 4, 2)}
    manifest = {
        "task": "object-detection",
        "detection": {"format": "ssd", "anchors_file": "link.csv"},
    }
    (tmp_path / "out.csv").write_text("1,2,3,4")
    model = facts(tmp_path, outputs, manifest, {"in.csv": "1,2,3,4"})
    link = tmp_path / "m" / "link.csv"
    link.symlink_to("in.csv")
    assert select_task(model).name == "object-detection"
    for target in ("../out.csv", "../none.csv"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(
            ModelLoadError,
            match=r"link\.csv cannot be used: it is a link that leaves the model's folder",
        ):
            select_task(facts(tmp_path, outputs, manifest))


def test_a_number_of_boxes_unlike_the_anchors_is_an_error(tmp_path: Path) -> None:
    task, outputs = detector(tmp_path, "raw")
    outputs = {name: array[:, :3] for name, array in outputs.items()}
    with pytest.raises(ApiError, match="3 boxes, but there are 4 anchors") as caught:
        task.answer([outputs], AnswerOptions(), task.prepare(picture()).context)
    assert caught.value.code is ErrorCode.INFERENCE_FAILED


def test_metadata_of_other_tools_suffices(tmp_path: Path) -> None:
    """Ultralytics' exports and Hugging Face's folders need no manifest."""
    properties = {
        "task": "detect",
        "stride": "32",
        "imgsz": "[100, 200]",
        "names": "{0: 'a', 1: 'b'}",
    }
    outputs = shaped({"o": ROWS8})
    task = select_task(facts(tmp_path, {"o": (1, 6, 4)}, properties=properties))
    assert task.name == "object-detection"
    assert "fit between bars" in task.describe()["preprocessing"]
    prepared = task.prepare(picture(400, 200))
    assert [
        entry["label"]
        for entry in task.answer([outputs], AnswerOptions(), prepared.context)
    ] == ["a", "b"]
    config = {
        "architectures": ["DetrForObjectDetection"],
        "id2label": {"0": "a", "1": "b"},
    }
    outputs = shaped(LAYOUTS["detr"][1])
    shapes = {name: array.shape for name, array in outputs.items()}
    task = select_task(facts(tmp_path, shapes, files={"config.json": config}))
    found = task.answer([outputs], AnswerOptions(), task.prepare(picture()).context)
    assert boxes_of(found) == WANTED


@pytest.mark.parametrize("labels", ["ab", "abc"])
def test_transposed_rows_of_ultralytics(tmp_path: Path, labels: str) -> None:
    """A row of scores for two classes is as long as a final row."""
    properties = {
        "task": "detect",
        "stride": "32",
        "imgsz": "[100, 200]",
        "names": str(dict(enumerate(labels))),
        "args": "{'nms': False}",
        "end2end": "False",
    }
    more = len(labels) - 2
    rows = np.pad(
        shaped({"o": ROWS8})["o"],
        (
            (0, 0),
            (0, more),
            (0, 0),
        ),
    )
    found = []
    for number, table in enumerate((rows, rows.transpose(0, 2, 1))):
        folder = tmp_path / str(number)
        folder.mkdir()
        model = facts(folder, {"o": table.shape}, properties=properties)
        task = select_task(model)
        prepared = task.prepare(picture(400, 200))
        answer = task.answer([{"o": table}], AnswerOptions(), prepared.context)
        found.append(answer)

    assert [entry["label"] for entry in found[0]] == ["a", "b"]
    assert found[0] == found[1]


def test_metadata_in_an_archive(tmp_path: Path) -> None:
    """A TFLite file's metadata.json reads like ONNX metadata.

    Damaged metadata is ignored.
    """
    kind = next(kind for kind in FORMATS if kind.name == "tflite")
    path = tmp_path / "m.tflite"
    version = VersionEntry("tflite", kind, path)
    session: Any = None  # only other kinds of files are accessed through it
    for content, wanted in {
        '{"task": "detect", "stride": 32, "imgsz": [100, 200], "names": {"0": "a"}}': {
            "task": "detect",
            "stride": "32",
            "imgsz": "[100, 200]",
            "names": "{'0': 'a'}",
        },
        "[1]": {},
        "{": {},
    }.items():
        path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(40))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("metadata.json", content)
        assert properties_of(version, session) == wanted
    path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(40))
    assert properties_of(version, session) == {}


# The parts

BOXES = st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=12)


@SETTINGS
@given(boxes=BOXES, limit=st.floats(0, 1), data=st.data())
def test_overlapping_boxes_are_suppressed(
    boxes: list[Any], limit: float, data: st.DataObject
) -> None:
    """Remaining boxes of a class do not overlap, and each dropped one overlaps a better
    one.
    """
    corners = to_corners(np.array(boxes), "upper_left")
    classes = np.array([data.draw(st.integers(0, 2)) for _ in boxes])
    kept = list(suppress(corners, classes, limit, len(boxes)))
    assert list(suppress(corners, classes, limit, 2)) == kept[:2]
    assert kept == sorted(kept)
    assert kept[0] == 0
    for index in range(len(boxes)):
        better = []
        for k in kept:
            if k < index and classes[k] == classes[index]:
                better.append(k)
        crossing = any(
            overlap(corners[k], corners[index : index + 1])[0] > limit for k in better
        )
        assert crossing == (index not in kept)


@SETTINGS
@given(
    boxes=BOXES,
    order=st.permutations([0, 1, 2, 3]),
    kind=st.sampled_from(["boundaries", "upper_left", "center"]),
)
def test_box_types_and_orders(boxes: list[Any], order: list[int], kind: str) -> None:
    """Every type and order of the numbers gives the same corners."""
    plain = np.array(boxes)
    mixed = np.empty_like(plain)
    mixed[:, order] = plain
    np.testing.assert_array_equal(
        to_corners(mixed, kind, tuple(order)), to_corners(plain, kind)
    )


def test_generated_anchors() -> None:
    """The SSD of TensorFlow's API on 300 x 300 has 1917.

    The first and last match its code.
    """
    options = AnchorOptions(strides=(16, 30, 60, 100, 150, 300))
    anchors = generate_anchors(options, 300, 300)
    assert anchors.shape == (19 * 19 * 3 + (100 + 25 + 9 + 4 + 1) * 6, 4)
    np.testing.assert_allclose(anchors[0], [0.5 / 19, 0.5 / 19, 0.1, 0.1])
    np.testing.assert_allclose(
        anchors[1],
        [
            0.5 / 19,
            0.5 / 19,
            0.2 / 2**0.5,
            0.2 * 2**0.5,
        ],
    )
    np.testing.assert_allclose(
        anchors[-1], [0.5, 0.5, (0.95 * 1.0) ** 0.5, (0.95 * 1.0) ** 0.5]
    )
    fixed = generate_anchors(
        AnchorOptions(
            (8, 16), aspect_ratios=(1.0,), reduce_lowest=False, fixed_size=True
        ),
        128,
        128,
    )
    assert fixed.shape == (256 * 2 + 64 * 2, 4)
    assert (fixed[:, 2:] == 1).all()


def test_decoding_undoes_encoding() -> None:
    """Offsets from anchors give back the encoded boxes."""
    np.testing.assert_allclose(
        decode_anchors(RAW, ANCHORS, (10, 10, 5, 5), True), CORNERS, atol=1e-12
    )


def test_the_name_of_the_task() -> None:
    """The module's name is the manifest's."""
    assert object_detection.ObjectDetection.name == object_detection.NAME
