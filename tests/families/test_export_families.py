"""Compare exports of Ultralytics and Teachable Machine with their own code."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from families.export_yolo import SIDE, Export, export, predictions
from families.reference import Family, ServedFamily

# The libraries warn of their own deprecations.
pytestmark = [
    pytest.mark.families,
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore"),
]

ULTRALYTICS = "Ultralytics"
SIZES = (
    (96, 64),
    (64, 96),
    (96, 96),
)
"""(width, height) of pictures that a letterbox of 96x96 pixels doesn't resize.

Ultralytics resizes with OpenCV, whose pixels differ a little, and a small difference
decides which of two overlapping boxes is dropped.
"""

IOU = 0.6
MARGIN = 2e-3  # of scores
WITHOUT_HEAD = (("nms", False),)


@dataclass(frozen=True)
class YoloFamily(Family):
    """A family of Ultralytics.

    Attributes:
        exports: its models, one for each format.
    """

    exports: tuple[Export, ...] = ()


def _family(name: str, task: str, exports: tuple[Export, ...]) -> YoloFamily:
    names = {"onnx": "ONNX", "torchscript": "TorchScript"}
    formats = tuple(dict.fromkeys(names[model.format] for model in exports))
    return YoloFamily(name, ULTRALYTICS, task, formats, exports=exports)


def _both(
    config: str, task: str, options: tuple[tuple[str, Any], ...] = ()
) -> tuple[Export, ...]:
    return tuple(
        Export(config, task, kind, options) for kind in ("onnx", "torchscript")
    )


FAMILIES = [
    _family(
        "YOLOv8 and YOLO11 detect",
        "object-detection",
        (Export("yolov8n", "detect"), *_both("yolo11n", "detect")),
    ),
    _family("YOLO11 segment", "object-detection", _both("yolo11n-seg", "segment")),
    _family("YOLO11 pose", "pose-estimation", _both("yolo11n-pose", "pose")),
    _family("YOLO11 obb", "object-detection", _both("yolo11n-obb", "obb")),
    _family(
        "YOLO11 classify", "image-classification", _both("yolo11n-cls", "classify")
    ),
    _family(
        "YOLO26 detect",
        "object-detection",
        (Export("yolo26n", "detect", options=WITHOUT_HEAD),),
    ),
    _family(
        "YOLO26 segment",
        "object-detection",
        (Export("yolo26n-seg", "segment", options=WITHOUT_HEAD),),
    ),
    _family(
        "YOLO26 pose",
        "pose-estimation",
        (Export("yolo26n-pose", "pose", options=WITHOUT_HEAD),),
    ),
    _family(
        "YOLO26 obb",
        "object-detection",
        (Export("yolo26n-obb", "obb", options=WITHOUT_HEAD),),
    ),
]
MODELS = [model for family in FAMILIES for model in family.exports]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on the folder."""
    server = start_server(tmp_path_factory.mktemp("server"), folder)
    yield server
    server.stop()


def blocks() -> list[Any]:
    """Return Pillow images of coloured blocks, in the sizes above."""
    import PIL.Image

    random = np.random.default_rng(11)
    images = []
    for width, height in SIZES:
        small = random.integers(
            0,
            256,
            (
                height // 12,
                width // 12,
                3,
            ),
            dtype=np.uint8,
        )
        images.append(
            PIL.Image.fromarray(small).resize(
                (width, height), PIL.Image.Resampling.NEAREST
            )
        )
    return images


def png(image: Any) -> bytes:
    """Return a picture as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_ultralytics_answers_are_the_same(
    model: Export, folder: Path, served: Server, tmp_path: Path
) -> None:
    """Scores are compared above a threshold that some of the answers reach."""
    path = export(model, tmp_path)

    def write(home: Path) -> None:
        (home / path.name).write_bytes(path.read_bytes())

    family = ServedFamily(served, folder, model.name, write)
    # PyTorch starts slowly, in the trial as well; a load has a longer timeout than a
    # request.
    assert (
        served.call("POST", f"/v2/repository/models/{model.name}/load").status_code
        == 200
    )
    compared = 0
    for image in blocks():
        threshold = 0.0
        if model.task != "classify":
            everything = predictions(path, model, image, 0.001, IOU)
            scores = np.sort(confidences(everything))[::-1]
            threshold = round(float(scores[:12].min()) - 1e-4, 6)
        result = predictions(path, model, image, max(threshold, 1e-3), IOU)
        parameters: dict[str, Any] = {"threshold": max(threshold, 1e-3), "top_k": 100}
        if model.options != WITHOUT_HEAD:  # such a model drops overlapping boxes itself
            parameters["iou"] = IOU
        if model.task == "segment":
            parameters["mask"] = "png"
        if model.task == "classify":
            parameters = {"top_k": 5}
        parameters["timeout_ms"] = 300_000
        answer = family.ask(png(image), **parameters)["predictions"]
        compared += compare(model, result, answer, image.size, threshold + MARGIN)
    assert compared >= 8


def confidences(result: Any) -> Any:
    """Return the scores of an Ultralytics result."""
    return (result.obb if result.obb is not None else result.boxes).conf.numpy()


def compare(
    model: Export,
    result: Any,
    answer: list[dict[str, Any]],
    size: tuple[int, int],
    least: float,
) -> int:
    """Compare an answer with Ultralytics' own; return the number of compared entries.

    Args:
        least: the score above which both must have found an object.
    """
    if model.task == "classify":
        probabilities = result.probs.data.numpy()
        for entry in answer:
            assert entry["score"] == pytest.approx(
                probabilities[entry["index"]], abs=2e-3
            )
        return len(answer)
    own = confidences(result)
    numbers = (
        (result.obb if result.obb is not None else result.boxes).cls.numpy().astype(int)
    )
    left = list(range(len(own)))
    compared = 0
    for entry in answer:
        places = [
            at
            for at in left
            if is_same(
                model,
                result,
                at,
                numbers,
                own,
                entry,
                size,
            )
        ]
        if not places and (model.task == "segment" or entry["score"] < least):
            continue  # Ultralytics omits objects with an empty mask
        assert places, f"{entry} is not among {len(own)} results of Ultralytics"
        left.remove(places[0])
        compared += 1
        if model.task == "segment":
            assert (
                mask_overlap(result.masks.data[places[0]].numpy(), entry, size) > 0.97
            )
    visible = [
        at for at in left if own[at] >= least and is_visible(model, result, at, size)
    ]
    assert not visible, f"{len(visible)} of {len(own)} results are missing"
    return compared


def is_visible(model: Export, result: Any, at: int, size: tuple[int, int]) -> bool:
    """Return whether a box has an area within the picture."""
    if model.task == "obb":
        corners = np.clip(
            result.obb.xyxyxyxy[at].numpy().reshape(4, 2), 0, np.array(size)
        )
        left, top, right, bottom = *corners.min(axis=0), *corners.max(axis=0)
    else:
        left, top, right, bottom = result.boxes.xyxy[at].tolist()
    return bool(right - left > 0.1 and bottom - top > 0.1)


def has_same_corners(result: Any, at: int, entry: dict[str, Any]) -> bool:
    """Compare the corners of a rotated box in any order."""
    own = result.obb.xyxyxyxy[at].numpy().reshape(4, 2)
    corners = np.array([[point["x"], point["y"]] for point in entry["corners"]])
    order = [sorted(points.tolist()) for points in (own, corners)]
    return bool(np.allclose(*order, atol=0.75))


def has_same_points(
    result: Any, at: int, entry: dict[str, Any], size: tuple[int, int]
) -> bool:
    """Compare the points of a person and their scores."""
    own = result.keypoints.data[at].numpy()
    points = np.array(
        [
            [
                point["x"],
                point["y"],
                point["score"],
            ]
            for point in entry["keypoints"]
        ]
    )
    # Ultralytics clips points at the picture's edges.
    inside = np.clip(points[:, :2], 0, np.array(size))
    if not np.allclose(own[:, :2], inside, atol=0.75):
        return False
    return bool(np.allclose(own[:, 2], points[:, 2], atol=0.01))


def is_same(
    model: Export,
    result: Any,
    at: int,
    numbers: Any,
    scores: Any,
    entry: dict[str, Any],
    size: tuple[int, int],
) -> bool:
    """Return whether an entry is one of Ultralytics' results."""
    if "index" in entry and numbers[at] != entry["index"]:
        return False
    if abs(float(scores[at]) - entry["score"]) > 2e-3:
        return False
    if model.task == "obb":
        return has_same_corners(result, at, entry)
    corners = result.boxes.xyxy[at].tolist()
    box = entry["box"]
    ends = [
        box["x"],
        box["y"],
        box["x"] + box["width"],
        box["y"] + box["height"],
    ]
    if not np.allclose(corners, ends, atol=0.75):
        return False
    if model.task == "pose":
        return has_same_points(result, at, entry, size)
    return True


def mask_overlap(own: Any, entry: dict[str, Any], size: tuple[int, int]) -> float:
    """Return the share of pixels on which two masks agree, in the entry's part of the
    input.
    """
    import PIL.Image

    mask = np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(entry["mask"])))) > 0
    scale = SIDE / max(size)
    bars = [(SIDE - side * scale) / 2 for side in size]
    left = round(entry["mask_box"]["x"] * scale + bars[0])
    top = round(entry["mask_box"]["y"] * scale + bars[1])
    part = own[top : top + mask.shape[0], left : left + mask.shape[1]] > 0
    inner = np.s_[1:-1, 1:-1]  # its edge pixels depend on rounding
    return float((part[inner] == mask[inner]).mean()) if mask[inner].size else 1.0


@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_an_export_can_be_added_and_queried(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter's file needs no further step."""
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    model = Export("yolo11n", "detect", kind)
    path = export(model, tmp_path)
    image = blocks()[0]
    (tmp_path / "photo.png").write_bytes(png(image))
    everything = predictions(path, model, image, 0.001, IOU)
    least = round(float(np.sort(confidences(everything))[::-1][:12].min()) - 1e-4, 6)

    run("add", path, "--models-dir", tmp_path / "models")
    words = ("--threshold", least, "--set", f"iou={IOU}", "--top-k", 100)
    where = ("--local", "--models-dir", tmp_path / "models", "--json")
    answer = json.loads(
        run("predict", path.stem, tmp_path / "photo.png", *words, *where)
    )

    result = predictions(path, model, image, least, IOU)
    entries = answer["predictions"]
    assert compare(model, result, entries, image.size, least + MARGIN) >= 8


def run(*words: object) -> str:
    """Run a ``pocketserve`` command; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "pocketserve", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
