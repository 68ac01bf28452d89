"""Image classification with each number format and each kind of scores."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pytest

from pocketserve.tasks.base import NO_HINTS, AnswerOptions
from pocketserve.tasks.labels import Labels, mismatch
from pocketserve.tasks.ranking import Ranking
from pocketserve.tasks.scores import ClassificationOptions
from pocketserve.tasks.vision.image_classification import ImageClassification
from pocketserve.tasks.vision.picture_input import PictureInput, picture_shape
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tensors import Array, Quantization, TensorSpec
from pocketserve_wire import ApiError, ErrorCode

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

PIXELS = np.linspace(0, 255, 24).astype(np.uint8).reshape(2, 4, 3)
SCORES = TensorSpec("scores", "FP32", (1, 4))


def task(
    datatype: str = "FP32",
    shape: tuple[int, ...] = (1, 2, 4, 3),
    output: TensorSpec = SCORES,
    labels: tuple[str, ...] = ("a", "b", "c", "d"),
    quantization: Quantization | None = None,
    **options: Any,
) -> ImageClassification:
    """Return a task for pictures of 4x2 pixels."""
    spec = TensorSpec("image", datatype, shape, quantization)
    ranking = Ranking(output, Labels(labels), ClassificationOptions())
    return ImageClassification(
        PictureInput(spec, ImageOptions(**options), 1000), ranking
    )


def picture() -> memoryview:
    """Return PIXELS as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return memoryview(file.getvalue())


def prepared(**options: Any) -> Array:
    """Return a model's input tensor for PIXELS."""
    (array,) = task(**options).prepare(picture()).runs[0].values()
    assert array.flags.c_contiguous
    return array


def test_uint8_gets_unchanged_pixels() -> None:
    """A declared mean and std describe the float model before quantisation."""
    for options in ({}, {"mean": (127.5,), "std": (127.5,)}):
        array = prepared(datatype="UINT8", **options)
        assert (array.dtype, array.shape) == (np.uint8, (1, 2, 4, 3))
        assert (array[0] == PIXELS).all()


def test_int8_is_shifted_by_128() -> None:
    """Without a declared mean, int8 stores the pixel minus 128."""
    array = prepared(datatype="INT8")
    assert array.dtype == np.int8
    assert (array[0].astype(int) == PIXELS.astype(int) - 128).all()


def test_floats_from_0_to_1() -> None:
    """Without a declared mean and std, pixels are divided by 255."""
    array = prepared()
    assert array.dtype == np.float32
    np.testing.assert_allclose(array[0], PIXELS / 255.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("names", "classes", "offset", "told"),
    [
        (["a", "b", "c"], 3, 0, ""),
        (["a", "b", "c", "", " "], 3, 0, ""),
        (["a", "b", ""], 3, 0, ""),
        (["a", "b"], 3, -1, ""),
        (["none", "a", "b", "c"], 3, 1, ""),
        ([], 3, 0, ""),
        (["no", "yes"], 1, 0, ""),
        (["a", "b"], -1, 0, ""),
        (["a", "b"], 3, 0, "the model has 2 labels for 3 classes, so that"),
        (["a"], 3, 0, "the model has 1 label for 3 classes"),
        (["none", "a", "b", "c"], 3, 0, "the model has 4 labels for 3 classes"),
        (
            ["a", "b", "c"],
            3,
            1,
            "the model has 3 labels for 3 classes with label_offset = 1",
        ),
    ],
)
def test_a_wrong_number_of_labels(
    names: list[str], classes: int, offset: int, told: str
) -> None:
    said = mismatch(Labels(names), classes, offset)
    assert said.startswith(told)
    assert bool(said) is bool(told)


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((127.5,), (127.5,)),
        ((10.0, 20.0, 30.0), (1.0, 2.0, 4.0)),
        ((5.0,), (1.0, 2.0, 4.0)),
    ],
)
def test_mean_and_std(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """One number for all channels, or one per channel."""
    expected = (PIXELS - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(prepared(mean=mean, std=std)[0], expected, rtol=1e-6)


def test_half_precision() -> None:
    """FP16 models get FP16."""
    assert prepared(datatype="FP16").dtype == np.float16


def test_channels_first() -> None:
    """For [1, channels, height, width], channels are normalised before they are moved."""
    mean = (10.0, 20.0, 30.0)
    std = (1.0, 2.0, 4.0)
    first = prepared(shape=(1, 3, 2, 4), mean=mean, std=std)
    assert first.shape == (1, 3, 2, 4)
    assert (first.transpose(0, 2, 3, 1) == prepared(mean=mean, std=std)).all()


def test_a_quantised_input() -> None:
    """Real numbers are quantised with the tensor's scale, rounded and saturated."""
    array = prepared(
        datatype="INT8", quantization=Quantization(0.5, -3), mean=(100.0,), std=(1.0,)
    )
    assert array.dtype == np.int8
    assert (array[0] == np.clip(np.rint((PIXELS - 100.0) / 0.5) - 3, -128, 127)).all()


def test_numbers_instead_of_a_picture() -> None:
    """The input tensor can be sent as JSON or as an .npy file."""
    numbers = np.arange(24, dtype=np.float32).reshape(1, 2, 4, 3)
    file = io.BytesIO()
    np.save(file, numbers)
    for body in (json.dumps(numbers.tolist()).encode(), file.getvalue()):
        assert (task().prepare(memoryview(body)).runs[0]["image"] == numbers).all()


def npy(array: Array) -> memoryview:
    """Return the bytes of an .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return memoryview(file.getvalue())


INPUTS: dict[str, dict[str, Any]] = {
    "floats": {},
    "channels first": {
        "shape": (1, 3, 2, 4),
        "mean": (10.0, 20.0, 30.0),
        "std": (1.0, 2.0, 4.0),
    },
    "free batch": {"shape": (-1, 3, 2, 4)},
    "free size": {"shape": (-1, -1, -1, 3), "size": (4, 2)},
    "UINT8, blue first": {"datatype": "UINT8", "color": "bgr"},
    "quantised": {
        "datatype": "INT8",
        "quantization": Quantization(0.5, -3),
        "mean": (100.0,),
        "std": (1.0,),
    },
    "grey, inverted": {"shape": (1, 2, 4, 1), "invert": "always"},
    "another size": {"shape": (1, 7, 5, 3), "resize": "letterbox"},
}
PICTURES: dict[str, Array] = {
    "RGB": PIXELS,
    "grey": PIXELS[..., 0],
    "RGBA": np.dstack([PIXELS, PIXELS[..., 0]]),
    "large": np.arange(20 * 30 * 3, dtype=np.uint32)
    .astype(np.uint8)
    .reshape(20, 30, 3),
}


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("case", INPUTS)
def test_an_array_of_pixels_is_a_picture(case: str, kind: str) -> None:
    """It is uint8 [height, width, channels], alone or in a batch of one.

    The answer equals its PNG file's, drawings included.
    """
    asked = task(**INPUTS[case])
    pixels = PICTURES[kind]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    expected, context = (
        (one := asked.prepare(file.getvalue())).runs[0]["image"],
        one.context,
    )
    sent = [pixels, np.asfortranarray(pixels)] + (
        [pixels[..., np.newaxis]] if pixels.ndim == 2 else [pixels[None]]
    )
    for array in sent[: 2 if array_is_the_tensor(asked, pixels) else 3]:
        found = asked.prepare(npy(array))
        assert found.context == context
        np.testing.assert_array_equal(found.runs[0]["image"], expected)
    drawn = []
    for body in (file.getvalue(), npy(pixels)):
        drawn.append(asked.annotate(body, NO_HINTS, [], [], context))
    assert drawn[0] == drawn[1]


def array_is_the_tensor(asked: ImageClassification, pixels: Array) -> bool:
    """Return whether an array is the model's tensor itself.

    The tensor has priority over a picture.
    """
    array = asked.prepare(npy(pixels)).runs[0]["image"]
    return array.dtype == np.uint8 and array.shape == (1, *pixels.shape)


def test_an_array_of_the_inputs_type_and_shape_is_the_tensor() -> None:
    """UINT8 in the model's own shape is passed on unchanged, without swapped colours."""
    asked = task(datatype="UINT8", color="bgr")
    assert (asked.prepare(npy(PIXELS[None])).runs[0]["image"] == PIXELS).all()
    assert (asked.prepare(npy(PIXELS)).runs[0]["image"][0] == PIXELS[..., ::-1]).all()


AMBIGUOUS_ARRAYS = [
    ({"shape": (-1, 3, 2, 4)}, np.zeros((2, 4, 3), np.float32), "FP32 [2, 4, 3]"),
    ({"shape": (-1, 3, 2, 4)}, np.zeros((3, 2, 4), np.int16), "INT16 [3, 2, 4]"),
    (
        {"shape": (-1, 2, 4, 3)},
        np.zeros((2, 2, 4, 3), np.float32),
        "FP32 [2, 2, 4, 3]",
    ),
    (
        {"shape": (-1, 2, 4, 3)},
        np.zeros((2, 2, 4, 3), np.uint8),
        "UINT8 [2, 2, 4, 3]",
    ),
    ({"shape": (-1, 3, 2, 5)}, np.zeros((3, 2, 5), np.uint8), "UINT8 [3, 2, 5]"),
    ({"shape": (-1, 3, 2, 4)}, np.zeros((3, 2, 4), np.int64), "INT64 [3, 2, 4]"),
    ({"shape": (-1, 2, 4, 1)}, np.zeros((1, 8), np.uint8), "UINT8 [1, 8]"),
    ({"shape": (-1, 2, 4, 1)}, np.zeros((8, 1), np.uint8), "UINT8 [8, 1]"),
    (
        {"shape": (-1, -1, -1, 3), "size": (4, 2)},
        np.zeros((1, 3, 3, 3), np.float32),
        "FP32 [1, 3, 3, 3]",
    ),
]
"""Options of the task, an array, and its description in the error."""


@pytest.mark.parametrize(("options", "array", "got"), AMBIGUOUS_ARRAYS)
def test_ambiguous_arrays_are_rejected(
    options: dict[str, Any], array: Array, got: str
) -> None:
    """Other layouts, integers for real numbers, rows, and larger batches."""
    with pytest.raises(ApiError) as caught:
        task(**options).prepare(npy(array))
    assert caught.value.code is ErrorCode.INVALID_INPUT
    assert caught.value.message.endswith(
        f"got {got}; send a picture as its file or as UINT8 [height, width, 3]"
    )
    assert caught.value.message.startswith("input 'image': expected FP32 [1, ")


def test_pixel_arrays_have_the_limit_of_files() -> None:
    with pytest.raises(ApiError, match="the limit is 1000"):
        task().prepare(npy(np.zeros((11, 100, 3), np.uint8)))


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        (b"", ErrorCode.INVALID_INPUT, "empty"),
        (b"hello", ErrorCode.INVALID_INPUT, "not a picture"),
        (b"[1, 2]", ErrorCode.INVALID_INPUT, "got JSON of shape"),
        (b"[1, 2", ErrorCode.MALFORMED_JSON, "JSON"),
        (b"{}", ErrorCode.INVALID_INPUT, "got an object"),
    ],
)
def test_invalid_bodies_are_rejected(body: bytes, code: ErrorCode, part: str) -> None:
    with pytest.raises(ApiError, match=part) as caught:
        task().prepare(memoryview(body))
    assert caught.value.code is code


def test_too_many_pixels() -> None:
    """The limit comes from the task's settings."""
    file = io.BytesIO()
    Image.new("1", (1001, 1)).save(file, "PNG")
    with pytest.raises(ApiError, match="limit is 1000"):
        task().prepare(memoryview(file.getvalue()))


# Answers


def answer(
    scores: Any, top_k: int = 5, threshold: float = 0.0, **options: Any
) -> list[tuple[str, int, float]]:
    """Return the answer to one row of scores."""
    outputs = {
        "scores": scores
        if isinstance(scores, np.ndarray)
        else np.array([scores], np.float32)
    }
    entries = task(**options).answer([outputs], AnswerOptions(top_k, threshold))
    json.dumps(entries, allow_nan=False)
    return [
        (
            entry["label"],
            entry["index"],
            entry["score"],
        )
        for entry in entries
    ]


def test_the_best_class_is_first() -> None:
    assert answer([0.25, 0.5, 0.125, 0.0]) == [
        ("b", 1, 0.5),
        ("a", 0, 0.25),
        ("c", 2, 0.125),
        ("d", 3, 0.0),
    ]


@pytest.mark.parametrize(
    ("top_k", "count"),
    [
        (0, 0),
        (1, 1),
        (3, 3),
        (4, 4),
        (1000, 4),
    ],
)
def test_top_k(top_k: int, count: int) -> None:
    """Returns at most the requested number, and at most all classes."""
    assert len(answer([0.25, 0.5, 0.125, 0.0], top_k)) == count


@pytest.mark.parametrize(
    ("threshold", "found"),
    [
        (0.0, "bacd"),
        (0.125, "bac"),
        (0.13, "ba"),
        (0.5, "b"),
        (0.6, ""),
    ],
)
def test_threshold(threshold: float, found: str) -> None:
    """A score equal to the threshold is included.

    The answer may be empty.
    """
    entries = answer([0.25, 0.5, 0.125, 0.0], threshold=threshold)
    assert "".join(label for label, _, _ in entries) == found


def test_ties_keep_the_order_of_the_classes() -> None:
    """Of equal scores, the lower class is first."""
    assert [index for _, index, _ in answer([0.5, 0.25, 0.5, 0.5])] == [0, 2, 3, 1]


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        ([math.nan, 0.5, math.inf, 0.25], [1, 3]),
        ([math.nan] * 4, []),
    ],
    ids=["some", "all"],
)
def test_non_finite_scores_are_omitted(scores: list[float], found: list[int]) -> None:
    """Non-finite scores are omitted, since JSON cannot express them."""
    assert [index for _, index, _ in answer(scores)] == found


def test_missing_labels() -> None:
    """A class without a name is shown by its number; names are stripped."""
    assert [label for label, _, _ in answer([4, 3, 2, 1], labels=(" a ", "b\r"))] == [
        "a",
        "b",
        "2",
        "3",
    ]
    assert [label for label, _, _ in answer([4, 3, 2, 1], labels=())] == [
        "0",
        "1",
        "2",
        "3",
    ]


@pytest.mark.parametrize(
    ("dtype", "datatype", "zero"),
    [
        (np.uint8, "UINT8", 0),
        (np.int8, "INT8", -128),
    ],
)
def test_quantised_scores(dtype: Any, datatype: str, zero: int) -> None:
    """Stored integers become real scores."""
    output = TensorSpec("scores", datatype, (1, 4), Quantization(1 / 256, zero))
    stored = (np.array([[0, 64, 192, 128]]) + zero).astype(dtype)
    assert answer(stored, output=output) == [
        ("c", 2, 0.75),
        ("d", 3, 0.5),
        ("b", 1, 0.25),
        ("a", 0, 0.0),
    ]


def test_real_scores_are_not_dequantised() -> None:
    """Scores that arrive as floats are not dequantised again."""
    output = TensorSpec("scores", "UINT8", (1, 4), Quantization(1 / 256, 0))
    assert answer([0.25, 0.5, 0.0, 0.0], top_k=1, output=output) == [("b", 1, 0.5)]


@pytest.mark.parametrize(
    "shape",
    [
        (4,),
        (1, 4),
        (1, 2, 2),
        (1, 1, 1, 4),
        (1, 4, 1),
    ],
)
def test_shapes_of_scores(shape: tuple[int, ...]) -> None:
    """Scores of any shape are one row of classes."""
    scores = np.array([0.0, 0.25, 1.0, 0.5], np.float32).reshape(shape)
    assert [index for _, index, _ in answer(scores)] == [2, 3, 1, 0]


def test_one_score_with_two_labels() -> None:
    """As in all binary classifiers, it is the second label's probability."""
    output = TensorSpec("scores", "FP32", (1, 1))
    assert answer([0.75], labels=("no", "yes"), output=output) == [
        ("yes", 1, 0.75),
        ("no", 0, 0.25),
    ]


def test_only_the_first_row_is_used() -> None:
    """One picture has one row."""
    assert answer(np.array([[0, 1], [1, 0]], np.float32), top_k=1) == [("b", 1, 1.0)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 2, 4, 3), ((4, 2, 3), False)),
        ((-1, 28, 28, 1), ((28, 28, 1), False)),
        ((1, 3, 2, 5), ((5, 2, 3), True)),
        ((1, 1, 28, 28), ((28, 28, 1), True)),
        ((1, 3, 224, 3), ((224, 3, 3), False)),
        ((1, 28, 28), None),
        ((2, 28, 28, 3), None),
        ((1, 28, 28, 4), None),
        ((1, -1, -1, 3), None),
        ((1, 0, 28, 3), None),
        ((), None),
    ],
)
def test_shapes_of_pictures(shape: tuple[int, ...], expected: Any) -> None:
    """Height, width and channels come from the shape.

    Other shapes are rejected.
    """
    spec = TensorSpec("image", "FP32", shape)
    if expected is None:
        with pytest.raises(ValueError, match="not that of a picture"):
            picture_shape(spec)
        return
    found, channels_first = picture_shape(spec)
    assert ((found.width, found.height, found.channels), channels_first) == expected
