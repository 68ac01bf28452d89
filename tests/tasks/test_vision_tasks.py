"""Segmentation, poses, and metadata on preprocessing, labels and scores."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import NO_HINTS, AnswerOptions, ExtendedAnswer, Hints
from pocketserve.tasks.labels import Labels, find_labels, label_of
from pocketserve.tasks.scores import Calibration, sigmoid, softmax
from pocketserve.tasks.selection import select_task
from pocketserve.tasks.vision.pose_estimation import COCO
from pocketserve.tasks.vision.preprocessing import ImageOptions, image_options
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, ErrorCode
from vision_models import facts, picture

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

# Segmentation

CLASSES = np.zeros((10, 20), np.int64)
CLASSES[:, :5] = 1
CLASSES[:2, 10:] = 2
SCORES = (np.arange(3) == CLASSES[..., None]).astype(np.float32)
MAPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "channels last": (SCORES[None], {}),
    "channels first": (SCORES.transpose(2, 0, 1)[None], {}),
    "no batch": (SCORES, {}),
    "class numbers": (CLASSES[None], {}),
    "class numbers with a channel": (CLASSES[None, ..., None], {}),
    "class numbers, channel first": (CLASSES[None, None], {}),
}


def segmenter(
    folder: Path,
    array: Any,
    options: dict[str, Any],
    labels: str = "ground\nleft\ntop\n",
    **image: Any,
) -> Any:
    """Return the task for a map."""
    manifest: dict[str, Any] = {
        "task": "image-segmentation",
        "segmentation": options,
        "labels": "l.txt",
    }
    if image:
        manifest["image"] = image
    return select_task(facts(folder, {"map": array.shape}, manifest, {"l.txt": labels}))


@pytest.mark.parametrize("case", MAPS)
def test_segmentation_maps(tmp_path: Path, case: str) -> None:
    """Each layout gives the same shares and mask."""
    array, options = MAPS[case]
    task = segmenter(tmp_path, array, options)
    context = task.prepare(picture()).context
    found = task.answer(
        [{"map": array}], AnswerOptions(values={"mask": "png"}), context
    )
    assert isinstance(found, ExtendedAnswer)
    assert [
        (
            e["label"],
            e["index"],
            e["pixels"],
            e["share"],
        )
        for e in found.entries
    ] == [
        ("ground", 0, 130, 0.65),
        ("left", 1, 50, 0.25),
        ("top", 2, 20, 0.1),
    ]
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(found.more["mask"]))))
    assert (mask == CLASSES).all()
    assert found.more["mask_box"] == {
        "x": 0,
        "y": 0,
        "width": 400,
        "height": 400,
    }
    assert (
        task.answer([{"map": array}], AnswerOptions(top_k=1, threshold=0.2), context)
        == found.entries[:1]
    )
    assert (
        len(task.answer([{"map": array}], AnswerOptions(threshold=0.2), context)) == 2
    )
    json.dumps(found.entries, allow_nan=False)


@pytest.mark.parametrize(
    ("options", "high"),
    [
        ({}, 0.6),
        ({"threshold": 0.1}, 0.2),
        ({"activation": "sigmoid"}, 0.5),
    ],
    ids=str,
)
def test_a_map_of_one_channel(
    tmp_path: Path, options: dict[str, Any], high: float
) -> None:
    """Class 1 is above the threshold.

    Logits get a sigmoid first.
    """
    array = np.where(CLASSES == 1, high, -0.1)[None, ..., None].astype(np.float32)
    task = segmenter(tmp_path, array, options)
    found = task.answer(
        [{"map": array}], AnswerOptions(), task.prepare(picture()).context
    )
    assert [(entry["index"], entry["pixels"]) for entry in found] == [(0, 150), (1, 50)]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ("horse", ["background", "horse"]),
        ("ground\nhorse", ["ground", "horse"]),
        ("", ["0", "1"]),
    ],
)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 10, 20, 1),
        (1, 1, 10, 20),
        (1, 10, 20),
    ],
)
def test_the_names_of_one_channel(
    tmp_path: Path, labels: str, names: list[str], shape: tuple[int, ...]
) -> None:
    """A single name is the object's.

    The background has none and is not drawn.
    """
    photo = picture(800, 800)  # smaller ones are drawn larger
    array = np.where(CLASSES == 1, 0.9, 0.1).reshape(shape).astype(np.float32)
    task = segmenter(tmp_path, array, {}, labels)
    context = task.prepare(photo).context
    found = task.answer([{"map": array}], AnswerOptions(), context)
    assert [(entry["index"], entry["label"]) for entry in found] == list(
        enumerate(names)
    )
    image = Image.open(
        io.BytesIO(task.annotate(photo, NO_HINTS, [{"map": array}], found, context))
    )
    plain = Image.open(io.BytesIO(bytes(photo))).convert("RGB")
    drawn = np.asarray(image)[: plain.height, : plain.width] != np.asarray(plain)
    assert drawn[300, 600].any() == (names[0] == "ground")


def test_letterbox_bars_are_removed(tmp_path: Path) -> None:
    """A letterbox's bars are removed from the mask.

    A crop's mask covers the visible part.
    """
    bars = np.zeros((1, 10, 20), np.int64)
    bars[:, :, 5:15] = 1
    task = segmenter(tmp_path, bars, {}, resize="letterbox")
    context = task.prepare(picture()).context
    assert [
        (e["index"], e["share"])
        for e in task.answer([{"map": bars}], AnswerOptions(), context)
    ] == [(1, 1.0)]
    task = segmenter(tmp_path, bars, {}, resize="crop")
    found = task.answer(
        [{"map": bars}],
        AnswerOptions(values={"mask": "png"}),
        task.prepare(picture()).context,
    )
    assert found.more["mask_box"] == {
        "x": 0,
        "y": 100,
        "width": 400,
        "height": 200,
    }


def test_many_classes(tmp_path: Path) -> None:
    """Beyond 256 classes the mask has 16 bits."""
    array = np.array([[[0, 300], [300, 65535]]])
    task = segmenter(tmp_path, array, {})
    found = task.answer(
        [{"map": array}],
        AnswerOptions(values={"mask": "png"}),
        task.prepare(picture()).context,
    )
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(found.more["mask"]))))
    assert mask.tolist() == array[0].tolist()


def test_output_names_of_the_map(tmp_path: Path) -> None:
    """The manifest's name is an output's own, or a signature's if unambiguous."""
    aliases = {"first": ("second", "scores", "map"), "second": ("first", "scores")}
    outputs = tuple(
        TensorSpec(name, "FP32", (1, 8, 8, 3), aliases=aliases[name])
        for name in aliases
    )

    def segmenter_of(name: str) -> Any:
        manifest = {"task": "image-segmentation", "segmentation": {"output": name}}
        return select_task(
            dataclasses.replace(facts(tmp_path, {}, manifest), outputs=outputs)
        )

    for name, own in {
        "first": "first",
        "second": "second",
        "map": "first",
    }.items():
        task = segmenter_of(name)
        assert task.answer(
            [{own: SCORES[None]}], AnswerOptions(), task.prepare(picture()).context
        )
    with pytest.raises(
        ModelLoadError,
        match=r"'scores', another name of several; the model has 'first', 'second'",
    ):
        segmenter_of("scores")
    with pytest.raises(
        ModelLoadError, match=r"names 'none'; the model has 'first', 'second'"
    ):
        segmenter_of("none")


def test_labels_identify_a_segmenter(tmp_path: Path) -> None:
    """As many names as channels identify one.

    Without names it stays tensors.
    """
    shapes = {"map": (1, 50, 100, 3)}
    assert (
        select_task(
            facts(tmp_path, shapes, {"labels": "l.txt"}, {"l.txt": "a\nb\nc\n"})
        ).name
        == "image-segmentation"
    )
    assert select_task(facts(tmp_path, shapes)).name == "tensors"


def test_labels_of_a_model_without_a_task(tmp_path: Path) -> None:
    """They name classes of an output on request.

    Only then is a read error reported.
    """
    shapes = {"a": (1, 2), "b": (1, 2)}
    assert list(
        select_task(
            facts(tmp_path, shapes, {"labels": "l.txt"}, {"l.txt": "no\nyes\n"})
        ).labels
    ) == [
        "no",
        "yes",
    ]
    assert not select_task(facts(tmp_path, shapes, {}, {"config.json": "{"})).labels
    with pytest.raises(ModelLoadError, match=r"labels names nothing\.txt"):
        select_task(facts(tmp_path, shapes, {"labels": "nothing.txt"}))
    with pytest.raises(ModelLoadError, match=r"config\.pbtxt: label_filename names no"):
        select_task(
            facts(tmp_path, shapes, {"labels": "nothing.txt"}, {"config.pbtxt": ""})
        )


# Poses


def movenet(points: Any) -> Any:
    """Return MoveNet's output for points [k, (x, y, score)] as ratios."""
    return np.asarray(points, np.float32)[:, [1, 0, 2]][None, None]


BODY = np.stack(
    [
        np.linspace(0.25, 0.75, 17),
        np.linspace(0.1, 0.9, 17),
        np.linspace(0.9, 0.5, 17),
    ],
    axis=1,
)


STRETCHED = {"task": "pose-estimation", "image": {"resize": "stretch"}}


def check_body(entry: dict[str, Any], tolerance: float = 0.01) -> None:
    """Check the body on a picture of 400 x 400 that filled the input."""
    points = entry["keypoints"]
    assert [point["label"] for point in points] == list(COCO)
    np.testing.assert_allclose(
        [point["x"] for point in points], 400 * BODY[:, 0], atol=tolerance
    )
    np.testing.assert_allclose(
        [point["y"] for point in points], 400 * BODY[:, 1], atol=tolerance
    )
    box = entry["box"]
    np.testing.assert_allclose(
        [
            box["x"],
            box["y"],
            box["width"],
            box["height"],
        ],
        [100, 40, 200, 320],
        atol=tolerance,
    )


def test_movenet(tmp_path: Path) -> None:
    """Its output's shape identifies it.

    It takes pixels from 0 to 255 between bars, as documented.
    """
    plain = select_task(facts(tmp_path, {"o": (1, 1, 17, 3)}))
    assert (
        "scaled to fit between bars to 200x100 RGB, pixel / 1"
        in plain.describe()["preprocessing"]
    )
    task = select_task(facts(tmp_path, {"o": (1, 1, 17, 3)}, STRETCHED))
    context = task.prepare(picture()).context
    (entry,) = task.answer([{"o": movenet(BODY)}], AnswerOptions(), context)
    assert entry["score"] == pytest.approx(0.7)
    assert task.name == "pose-estimation"
    check_body(entry)
    assert (
        task.answer([{"o": movenet(BODY)}], AnswerOptions(threshold=0.8), context) == []
    )


def test_several_bodies(tmp_path: Path) -> None:
    """MoveNet's multipose: the better one first, without empty rows."""
    rows = np.zeros((1, 6, 56), np.float32)
    for row, score in ((2, 0.5), (4, 0.9)):
        rows[0, row, :51] = movenet(BODY).reshape(-1)
        rows[0, row, 55] = score
    task = select_task(facts(tmp_path, {"o": (1, 6, 56)}, STRETCHED))
    found = task.answer([{"o": rows}], AnswerOptions(), task.prepare(picture()).context)
    assert [entry["score"] for entry in found] == [pytest.approx(0.9), 0.5]
    check_body(found[1])


def posenet_outputs() -> tuple[Array, Array]:
    """Return PoseNet's heat map and offsets for :data:`BODY`."""
    heat = np.full((1, 5, 9, 17), -8.0, np.float32)
    offsets = np.zeros((1, 5, 9, 34), np.float32)
    places = BODY[:, :2] * np.array([200, 100])
    row_height = 99 / 4
    column_width = 199 / 8
    for number, (x, y) in enumerate(places):
        column = int(np.rint(x / column_width))
        row = int(np.rint(y / row_height))
        heat[0, row, column, number] = 2.0
        offsets[0, row, column, number] = y - row * row_height
        offsets[0, row, column, 17 + number] = x - column * column_width
    return heat, offsets


@pytest.mark.parametrize("swapped", [False, True])
def test_posenet(tmp_path: Path, swapped: bool) -> None:
    """The highest cell and its offset.

    The channels identify the outputs.
    """
    heat, offsets = posenet_outputs()
    arrays = {"h": heat, "o": offsets}
    names = ("o", "h") if swapped else ("h", "o")
    shapes = {name: arrays[name].shape for name in names}
    task = select_task(facts(tmp_path, shapes))
    context = task.prepare(picture()).context
    (entry,) = task.answer([arrays], AnswerOptions(), context)
    check_body(entry, 0.1)
    assert entry["score"] == pytest.approx(sigmoid(2.0))


def test_names_of_points(tmp_path: Path) -> None:
    """A hand has other points than a body."""
    manifest = {
        "task": "pose-estimation",
        "pose": {"keypoints": ["wrist", "tip"], "skeleton": [[0, 1]]},
    }
    task = select_task(facts(tmp_path, {"o": (1, 1, 2, 3)}, manifest))
    (entry,) = task.answer(
        [{"o": movenet(BODY[:2])}], AnswerOptions(), task.prepare(picture()).context
    )
    assert [point["label"] for point in entry["keypoints"]] == ["wrist", "tip"]


@pytest.mark.parametrize(
    ("shapes", "options", "part"),
    [
        ({"o": (1, 17)}, {}, "needs \\[pose\\] format"),
        ({"h": (1, 5, 9, 17)}, {"format": "posenet"}, "needs heat maps"),
        (
            {"h": (1, 5, 9, 17), "o": (1, 5, 9, 34)},
            {"format": "posenet", "offsets": "x"},
            "names 'x'",
        ),
    ],
)
def test_incompatible_poses_are_rejected(
    tmp_path: Path, shapes: Any, options: Any, part: str
) -> None:
    """Each error names the key."""
    with pytest.raises(ModelLoadError, match=part):
        select_task(
            facts(tmp_path, shapes, {"task": "pose-estimation", "pose": options})
        )


# Drawings


def drawn(task: Any, outputs: dict[str, Any], width: int, height: int) -> Any:
    """Return the PNG from annotate."""
    body = picture(width, height, "JPEG")
    hints = Hints()
    context = task.prepare(body).context
    answer = task.answer([outputs], AnswerOptions(threshold=0.0), context)
    entries = answer
    if isinstance(answer, ExtendedAnswer):
        entries = answer.entries
    return Image.open(
        io.BytesIO(task.annotate(body, hints, [outputs], entries, context))
    )


SIZES = [
    (1, 1),
    (3, 2000),
    (28, 28),
    (640, 480),
    (4000, 3000),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_drawings_of_any_size(tmp_path: Path, size: tuple[int, int]) -> None:
    """A thumbnail is enlarged, a photo reduced, and every task draws on both."""
    boxes = {
        "boxes": np.array([[[0.0, 0, 1, 1], [0.2, 0.2, 0.4, 0.3]]]),
        "scores": np.array([[[0.9], [0.8]]]),
    }
    detection = {
        "task": "object-detection",
        "detection": {"format": "ssd", "box_type": "boundaries"},
    }
    bars = {"task": "image-classification", "labels": "l.txt"}
    long = {"l.txt": "a name that is longer than any picture is wide " * 5 + "\nb\n"}
    tasks: list[tuple[Any, dict[str, Any]]] = [
        (
            select_task(
                facts(tmp_path, {"boxes": (1, 2, 4), "scores": (1, 2, 1)}, detection)
            ),
            boxes,
        ),
        (segmenter(tmp_path, SCORES[None], {}), {"map": SCORES[None]}),
        (select_task(facts(tmp_path, {"o": (1, 1, 17, 3)})), {"o": movenet(BODY)}),
        (
            select_task(facts(tmp_path, {"s": (1, 2)}, bars, long)),
            {"s": np.array([[0.7, -3.5]], np.float32)},
        ),
    ]
    for task, outputs in tasks:
        image = drawn(task, outputs, *size)
        assert image.format == "PNG"
        assert image.mode == "RGB"
        assert 400 <= max(image.size) <= 1900


def test_a_drawing_as_jpeg_is_the_same_picture(tmp_path: Path) -> None:
    task = select_task(facts(tmp_path, {"s": (1, 2)}, {"task": "image-classification"}))
    body = picture(1600, 1200, "JPEG")
    scores = {"s": np.array([[0.7, 0.3]], np.float32)}
    context = task.prepare(body).context
    answer = task.answer([scores], AnswerOptions(), context)
    files = []
    for kind in ("png", "jpeg"):
        files.append(
            task.annotate(
                body, Hints(values={"annotate": kind}), [scores], answer, context
            )
        )
    png, jpeg = (Image.open(io.BytesIO(file)) for file in files)
    assert png.format == "PNG"
    assert jpeg.format == "JPEG"
    assert png.size == jpeg.size
    assert np.abs(np.asarray(png, np.int16) - np.asarray(jpeg, np.int16)).mean() < 4


def test_a_drawing_with_many_classes_is_bounded(tmp_path: Path) -> None:
    """Ten thousand classes do not give a picture of gigabytes."""
    task = select_task(
        facts(tmp_path, {"s": (1, 10_000)}, {"task": "image-classification"})
    )
    body = picture(1600, 1200, "JPEG")
    context = task.prepare(body).context
    outputs = {"s": np.linspace(1, 0, 10_000, dtype=np.float32)[None]}
    entries = task.answer([outputs], AnswerOptions(top_k=10_000), context)
    image = Image.open(
        io.BytesIO(task.annotate(body, Hints(), [outputs], entries, context))
    )
    assert len(entries) == 10_000
    assert image.height < 8000


def test_numbers_cannot_be_drawn_on(tmp_path: Path) -> None:
    task = select_task(facts(tmp_path, {"o": (1, 1, 17, 3)}))
    with pytest.raises(ApiError, match="needs a picture") as caught:
        task.annotate(memoryview(b"[1]"), Hints(), [], [], None)
    assert caught.value.code is ErrorCode.INVALID_INPUT


# Metadata of files

VIT = {
    "do_resize": True,
    "size": {"height": 100, "width": 200},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.25, 0.5],
    "resample": 3,
}
RESNET = {
    **VIT,
    "size": {"shortest_edge": 256},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
}
TIMM = {
    "pretrained_cfg": {
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "crop_pct": 0.9,
        "interpolation": "bicubic",
    }
}
GREY = tuple([127.5] * 3)
SAID: dict[str, tuple[dict[str, Any], dict[str, str], ImageOptions]] = {
    "ViT": (
        {"preprocessor_config.json": VIT},
        {},
        ImageOptions(
            mean=GREY, std=(127.5, 63.75, 127.5), resample="bicubic", size=(200, 100)
        ),
    ),
    "ResNet": (
        {"preprocessor_config.json": RESNET},
        {},
        ImageOptions(
            None,
            "crop",
            GREY,
            (127.5, 63.75, 127.5),
            "never",
            "bicubic",
            0.875,
            size=(224, 224),
        ),
    ),
    "no normalisation": (
        {"preprocessor_config.json": {**VIT, "do_normalize": False, "resample": 2}},
        {},
        ImageOptions(mean=(0.0,), std=(255.0,), resample="bilinear", size=(200, 100)),
    ),
    "no rescaling": (
        {
            "preprocessor_config.json": {
                **VIT,
                "do_rescale": False,
                "do_normalize": False,
                "size": 64,
            }
        },
        {},
        ImageOptions(mean=(0.0,), std=(1.0,), resample="bicubic", size=(64, 64)),
    ),
    "timm": (
        {"config.json": TIMM},
        {},
        ImageOptions(
            *(None, "crop", GREY, GREY, "never", "bicubic", 0.9), size=(224, 224)
        ),
    ),
    "Ultralytics": (
        {},
        {"names": "{0: 'a'}", "stride": "32", "task": "detect", "imgsz": "[320, 640]"},
        ImageOptions(
            mean=(0.0,),
            std=(255.0,),
            resize="letterbox",
            fill=(114.0,),
            size=(640, 320),
        ),
    ),
    "Custom Vision": (
        {},
        {
            "Image.BitmapPixelFormat": "Bgr8",
            "Image.NominalPixelRange": "NominalRange_0_255",
        },
        ImageOptions("bgr", mean=(0.0,), std=(1.0,)),
    ),
    "nothing": ({}, {}, ImageOptions()),
}


def test_the_problem_type_of_a_timm_model_applies(tmp_path: Path) -> None:
    """transformers wraps models of timm, also for several labels."""
    config = {
        "architectures": ["TimmWrapperForImageClassification"],
        "problem_type": "multi_label_classification",
        "label_names": ["a", "b"],
        **TIMM,
    }
    task = select_task(facts(tmp_path, {"s": (1, 2)}, files={"config.json": config}))
    scores = {"s": np.zeros((1, 2), np.float32)}
    entries = task.answer([scores], AnswerOptions(), task.prepare(picture()).context)

    assert [entry["score"] for entry in entries] == [0.5, 0.5]


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["DeiTForImageClassificationWithTeacher"]},
        {"model_type": "vit"},
        {"model_type": "vit", "architectures": None},
    ],
    ids=["teacher", "no architectures", "null"],
)
def test_logits_of_transformers_get_softmax(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    config = {"id2label": {"0": "a", "1": "b"}, **config}
    task = select_task(facts(tmp_path, {"s": (1, 2)}, files={"config.json": config}))
    scores = {"s": np.array([[0.0, np.log(3)]], np.float32)}
    best = task.answer([scores], AnswerOptions(), task.prepare(picture()).context)[0]

    assert (best["label"], best["score"]) == ("b", pytest.approx(0.75))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"threshold": 0.0}, "softmax"),
        ({"label_offset": 0}, "softmax"),
        ({"activation": "none"}, "none"),
        ({"activation": "sigmoid", "threshold": 0.0}, "sigmoid"),
    ],
)
def test_timm_scores_get_softmax_unless_the_manifest_says_otherwise(
    tmp_path: Path, options: dict[str, Any], wanted: str
) -> None:
    config = {"label_names": ["a", "b"], **TIMM}
    model = facts(
        tmp_path, {"s": (1, 2)}, {"classification": options}, {"config.json": config}
    )
    task = select_task(model)
    context = task.prepare(picture()).context
    scores = np.array([[1.0, 3.0]], np.float32)
    entries = list(task.answer([{"s": scores}], AnswerOptions(), context))

    logits = scores[0].astype(np.float64)
    activated = {
        "softmax": np.exp(logits) / np.exp(logits).sum(),
        "sigmoid": 1 / (1 + np.exp(-logits)),
        "none": logits,
    }
    assert [entry["score"] for entry in entries] == pytest.approx(
        activated[wanted][::-1].tolist()
    )


@pytest.mark.parametrize("case", SAID)
def test_preprocessing_from_metadata(tmp_path: Path, case: str) -> None:
    """Each tool's file gives the same few options."""
    files, properties, wanted = SAID[case]
    found = image_options(
        facts(tmp_path, {"s": (1, 2)}, files=files, properties=properties)
    )
    for key in ("mean", "std"):
        mine = getattr(found, key)
        theirs = getattr(wanted, key)
        assert (mine is None and theirs is None) or mine == pytest.approx(theirs)
    rest = ("color", "resize", "invert", "resample", "fill", "size")
    assert [getattr(found, key) for key in rest] == [
        getattr(wanted, key) for key in rest
    ]
    assert found.crop_fraction == pytest.approx(wanted.crop_fraction)


def test_the_manifest_overrides_metadata(tmp_path: Path) -> None:
    """Each key alone.

    But half a normalisation is completed, and resizing is independent.
    """
    manifest = {"image": {"resize": "letterbox", "mean": 0, "std": 1}}
    found = image_options(
        facts(tmp_path, {"s": (1, 2)}, manifest, {"preprocessor_config.json": RESNET})
    )
    assert found.resize == "letterbox"
    assert found.crop_fraction is None
    assert found.mean == (0.0,)
    assert found.std == (1.0,)
    assert found.resample == "bicubic"


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[1]",
        '{"image_mean": ["a"], "image_std": [1]}',
        '{"image_mean": [1], "image_std": [0]}',
        '{"rescale_factor": -1}',
        '{"rescale_factor": 0}',
        '{"rescale_factor": 1e-320}',
        '{"rescale_factor": true}',
        '{"rescale_factor": NaN}',
        '{"rescale_factor": "1/255"}',
    ],
)
def test_damaged_metadata_files_are_named(tmp_path: Path, content: str) -> None:
    """A damaged file is named instead of ignored."""
    with pytest.raises(ModelLoadError, match="beside the model"):
        image_options(
            facts(tmp_path, {"s": (1, 2)}, files={"preprocessor_config.json": content})
        )


@pytest.mark.parametrize("key", ["image_mean", "image_std"])
@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_wrong_number_of_channel_values(tmp_path: Path, key: str, count: int) -> None:
    processor = {
        "image_mean": [0.5],
        "image_std": [0.5],
        key: [0.5] * count,
    }
    files = {"preprocessor_config.json": processor}

    with pytest.raises(ModelLoadError, match=f"^{key} .* has {count} numbers"):
        image_options(facts(tmp_path, {"s": (1, 2)}, files=files))


def test_an_unused_factor_is_not_checked(tmp_path: Path) -> None:
    processor = {"do_rescale": False, "rescale_factor": "none"}
    files = {"preprocessor_config.json": processor}

    found = image_options(facts(tmp_path, {"s": (1, 2)}, files=files))

    assert found.std == (1.0,)


def test_a_classifier_of_hugging_face(tmp_path: Path) -> None:
    """Names and logits suffice without a manifest."""
    config = {
        "architectures": ["ViTForImageClassification"],
        "id2label": {"1": "dog", "0": "cat"},
    }
    task = select_task(
        facts(tmp_path, {"logits": (-1, 2)}, files={"config.json": config})
    )
    (best, _) = task.answer(
        [{"logits": np.array([[0.0, np.log(3)]], np.float32)}], AnswerOptions(), None
    )
    assert best == {
        "label": "dog",
        "index": 1,
        "score": pytest.approx(0.75),
    }


NAMED: dict[str, tuple[dict[str, Any], dict[str, str], list[str]]] = {
    "id2label": (
        {"config.json": {"id2label": {"2": "c", "0": "a"}}},
        {},
        ["a", "", "c"],
    ),
    "label_names": ({"config.json": {"label_names": ["a", "b"]}}, {}, ["a", "b"]),
    "a list": ({"config.json": {"id2label": ["a", "b"]}}, {}, ["a", "b"]),
    "a list of numbers": ({"config.json": {"id2label": [1, 2]}}, {}, []),
    "names in a list": ({}, {"names": "['a', 'b']"}, ["a", "b"]),
    "huge numbers": ({"config.json": {"id2label": {"999999999": "a"}}}, {}, []),
    "names": ({}, {"names": "{0: 'a', 1: 'b'}"}, ["a", "b"]),
    "code": ({}, {"names": "__import__('os').getcwd()"}, []),
    "labels.txt": ({"labels.txt": "a\nb\n"}, {}, ["a", "b"]),
    "nothing": ({}, {}, []),
}


@pytest.mark.parametrize("case", NAMED)
def test_label_sources(tmp_path: Path, case: str) -> None:
    """Each tool's file for names."""
    files, properties, wanted = NAMED[case]
    assert (
        list(
            find_labels(
                facts(tmp_path, {"s": (1, 2)}, files=files, properties=properties)
            ).names
        )
        == wanted
    )


@pytest.mark.parametrize(
    "name",
    [
        "l.txt",
        ["cat"],
    ],
)
def test_label_languages(tmp_path: Path, name: str | list[str]) -> None:
    """The requested language, a related one, or the first.

    From files or the manifest.
    """
    manifest = {"labels": name, "translations": {"de": ["Katze"], "pt-BR": "l.pt.txt"}}
    files = {"l.txt": "cat\n", "l.pt.txt": "gato\n"}
    labels = find_labels(facts(tmp_path, {"s": (1, 2)}, manifest, files))
    found = [labels.in_language(tag)[0] for tag in (None, "de", "de-AT", "pt", "fr")]
    assert found == ["cat", "Katze", "Katze", "gato", "cat"]
    assert Labels(["a"]).in_language("de") == ["a"]
    assert label_of(["", "b"], 0) == "0"


def test_calibration() -> None:
    """scale / (1 + exp(-(slope * t(score) + offset))); classes without parameters get
    the default.
    """
    rows = np.array(
        [
            [1.0, 2.0, -1.0, -np.inf],
            [np.nan, np.nan, np.nan, -np.inf],
            [0.9, 1.0, 0.0, 0.5],
        ]
    )
    scores = np.array([0.25, 0.9, 0.4, 0.7])
    for kind, moved in (
        ("identity", 0.25),
        ("log", np.log(0.25)),
        ("inverse_logistic", np.log(0.25 / 0.75)),
    ):
        found = Calibration(rows, kind, 0.125).apply(scores)
        assert found[0] == pytest.approx(1 / (1 + np.exp(-(2 * moved - 1))))
        assert found[1:].tolist() == [0.125, 0.125, 0.125]
    above = Calibration(rows, "identity", 0.0).apply(np.array([0.0, 0.0, 0.5, 0.0]))
    assert above[2] == pytest.approx(0.9 * sigmoid(0.5))


def test_activations_of_large_numbers_do_not_overflow() -> None:
    assert sigmoid(np.array([-1e9, 0.0, 1e9])).tolist() == [0.0, 0.5, 1.0]
    assert softmax(np.array([1e9, 1e9])).tolist() == [0.5, 0.5]


def test_an_input_of_open_size(tmp_path: Path) -> None:
    """The manifest fixes the size.

    Without it the error says so.
    """
    image = TensorSpec("image", "FP32", (-1, 3, -1, -1))
    manifest: dict[str, Any] = {"task": "image-classification"}
    with pytest.raises(ModelLoadError, match="set width and height"):
        select_task(facts(tmp_path, {"s": (-1, 2)}, manifest, image=image))
    manifest["image"] = {
        "width": 20,
        "height": 10,
        "color": "bgr",
        "mean": 0,
        "std": 1,
    }
    task = select_task(facts(tmp_path, {"s": (-1, 2)}, manifest, image=image))
    red = io.BytesIO()
    Image.new("RGB", (5, 5), (255, 0, 0)).save(red, "PNG")
    array = task.prepare(memoryview(red.getvalue())).runs[0]["image"]
    assert array.shape == (1, 3, 10, 20)
    assert array[0, :, 0, 0].tolist() == [0, 0, 255]
    assert "20x10 BGR" in task.describe()["preprocessing"]


# Outputs of any kind

ANY_TASK: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "classes": ({"task": "image-classification"}, {"a": (1, 3)}),
    "operator": ({}, {"a": (1, 5, 4), "b": (1, 5), "c": (1, 5), "d": (1,)}),
    "yolov5": (
        {"task": "object-detection", "detection": {"format": "yolov5"}},
        {"a": (1, 8, 7)},
    ),
    "yolov8": (
        {"task": "object-detection", "detection": {"format": "yolov8"}},
        {"a": (1, 7, 8)},
    ),
    "ssd": (
        {"task": "object-detection", "detection": {"format": "ssd"}},
        {"a": (1, 5, 4), "b": (1, 5, 3)},
    ),
    "map": ({"task": "image-segmentation"}, {"a": (1, 4, 6, 3)}),
    "movenet": ({"task": "pose-estimation"}, {"a": (1, 1, 17, 3)}),
    "posenet": ({"task": "pose-estimation"}, {"a": (1, 3, 3, 17), "b": (1, 3, 3, 34)}),
}
NUMBERS = st.one_of(
    st.floats(width=32),
    st.floats(-2, 2, width=32),
    st.sampled_from([0.0, 1.0, np.nan, np.inf, -np.inf, 1e38]),
)


@settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
)
@given(data=st.data(), case=st.sampled_from(sorted(ANY_TASK)))
def test_random_outputs_do_no_harm(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, case: str
) -> None:
    """Any numbers give valid JSON with finite boxes, or a model error."""
    manifest, shapes = ANY_TASK[case]
    task = select_task(facts(tmp_path_factory.mktemp("any"), shapes, manifest))
    context = task.prepare(picture(40, 30)).context
    outputs = {}
    for name, shape in shapes.items():
        values = data.draw(st.lists(NUMBERS, min_size=1, max_size=12))
        outputs[name] = np.resize(np.array(values, np.float32), shape)
    with np.errstate(all="ignore"):
        found = task.answer([outputs], AnswerOptions(threshold=-1.0), context)
    for entry in found:
        finite = [value for value in entry.get("box", {}).values()]
        assert np.isfinite(finite).all()
    json.dumps(found, allow_nan=False)
