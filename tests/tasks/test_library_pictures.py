"""Picture models of other libraries: sizes, crops, padding, masks and detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import tensors
from pocketserve.tasks.base import NO_HINTS, AnswerOptions
from pocketserve.tasks.foreign.registry import reject_unsupported_keys
from pocketserve.tasks.model_facts import MetadataError, ModelFacts
from pocketserve.tasks.selection import select_task
from pocketserve.tasks.vision.geometry import Area, Sizing, place_sized
from pocketserve.tasks.vision.picture_input import picture_input, takes_picture
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError
from vision_models import facts, picture

PROCESSOR = "preprocessor_config.json"
OPEN = TensorSpec("pixel_values", "FP32", (-1, -1, -1, -1))
DETR_PROCESSOR = {
    "image_processor_type": "DetrImageProcessor",
    "size": {"shortest_edge": 40, "longest_edge": 80},
}
NAMES = {"0": "cat", "1": "dog"}


@pytest.mark.parametrize(
    ("sizing", "photo", "scaled"),
    [
        (Sizing(exact=(30, 20)), (100, 50), (30, 20)),
        (Sizing(shortest=32), (100, 50), (64, 32)),
        (Sizing(shortest=32), (50, 100), (32, 64)),
        (Sizing(shortest=32), (64, 33), (62, 32)),
        (Sizing(shortest=40, longest=80), (100, 80), (50, 40)),
        (Sizing(shortest=40, longest=80), (400, 100), (80, 20)),
        # The library rounds 79.99… down.
        (
            Sizing(shortest=40, longest=80),
            (100, 333),
            (24, 79),
        ),
        (Sizing(shortest=40, longest=80, multiple=16), (400, 100), (80, 16)),
        (Sizing(within=(60, 60)), (120, 30), (60, 15)),
        (Sizing(), (37, 21), (37, 21)),
        (Sizing(shortest=4), (1, 900), (4, 3600)),
        (Sizing(within=(8, 8)), (1, 900), (1, 8)),
    ],
)
def test_the_size_after_scaling(
    sizing: Sizing, photo: tuple[int, int], scaled: tuple[int, int]
) -> None:
    assert sizing.scaled(photo) == scaled


@pytest.mark.parametrize(
    ("sizing", "photo", "source", "target"),
    [
        (
            Sizing(shortest=40, crop=(32, 32)),
            (100, 50),
            Area(30, 5, 40, 40),
            Area(0, 0, 32, 32),
        ),
        (
            Sizing(exact=(8, 8), crop=(12, 12)),
            (80, 80),
            Area(0, 0, 80, 80),
            Area(2, 2, 8, 8),
        ),
        (
            Sizing(shortest=10, longest=20, pad=(32, 32)),
            (40, 20),
            Area(0, 0, 40, 20),
            Area(0, 0, 20, 10),
        ),
        (
            Sizing((8, 8), cut=(0.5, 0.5)),
            (40, 20),
            Area(15, 5, 10, 10),
            Area(0, 0, 8, 8),
        ),
        (
            Sizing(exact=(11, 11), crop=(8, 8)),
            (11, 11),
            Area(1, 1, 8, 8),
            Area(0, 0, 8, 8),
        ),
        (
            Sizing(exact=(11, 11), crop=(8, 8), rounds=True),
            (11, 11),
            Area(2, 2, 8, 8),
            Area(0, 0, 8, 8),
        ),
    ],
)
def test_the_placement_of_a_processor(
    sizing: Sizing, photo: tuple[int, int], source: Area, target: Area
) -> None:
    placement = place_sized(photo, sizing)

    assert placement.source == pytest.approx(source)
    assert placement.target == target


def test_a_region_is_placed_like_a_whole_picture() -> None:
    placement = place_sized(
        (200, 100), Sizing(shortest=20, crop=(20, 20)), Area(100, 0, 80, 40)
    )

    assert placement.source == pytest.approx(Area(120, 0, 40, 40))


# Free axes


def classifier(
    folder: Path, spec: TensorSpec, config: dict[str, Any], processor: dict[str, Any]
) -> ModelFacts:
    files = {
        "config.json": {
            "architectures": ["XForImageClassification"],
            "id2label": NAMES,
            **config,
        }
    }
    if processor:
        files[PROCESSOR] = processor
    return facts(folder, {"logits": (-1, 2)}, files=files, image=spec)


@pytest.mark.parametrize(
    ("config", "processor", "shape"),
    [
        ({"num_channels": 3}, {"size": {"height": 32, "width": 48}}, (1, 3, 32, 48)),
        ({"num_channels": 1}, {"size": {"height": 32, "width": 48}}, (1, 1, 32, 48)),
        (
            {},
            {
                "size": {"height": 32, "width": 48},
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
            },
            (1, 3, 32, 48),
        ),
        ({}, {"size": 40}, (1, 3, 40, 40)),
    ],
)
def test_an_input_that_leaves_all_sizes_open(
    tmp_path: Path,
    config: dict[str, Any],
    processor: dict[str, Any],
    shape: tuple[int, ...],
) -> None:
    model = classifier(tmp_path, OPEN, config, processor)

    assert select_task(model).name == "image-classification"
    assert (
        picture_input(model, "image-classification").read(picture(90, 70))[0].shape
        == shape
    )


def test_a_channel_order_for_a_model_of_one_channel(tmp_path: Path) -> None:
    processor = {"size": 32, "do_flip_channel_order": True}
    model = classifier(tmp_path, TensorSpec("x", "FP32", (1, 1, 32, 32)), {}, processor)

    assert picture_input(model, "image-classification").read(picture(40, 40))[
        0
    ].shape == (1, 1, 32, 32)


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (
            DETR_PROCESSOR,
            "scaled to a shorter side of 40 and a longer one of at most 80 RGB",
        ),
        (
            {"image_processor_type": "LevitImageProcessor"},
            "scaled to a shorter side of 256, cropped to 224x224 RGB",
        ),
        (
            {"image_processor_type": "PerceiverImageProcessor"},
            "cropped to its middle and scaled RGB",
        ),
        ({"size": {"max_height": 30, "max_width": 40}}, "scaled to fit into 40x30 RGB"),
        (
            {"image_processor_type": "DeiTImageProcessor"},
            "stretched to 256x256, cropped to 224x224 RGB",
        ),
    ],
)
def test_the_preprocessing_in_words(
    tmp_path: Path, processor: dict[str, Any], words: str
) -> None:
    model = classifier(tmp_path, OPEN, {}, processor)

    assert words in picture_input(model, "image-classification").describe()


def test_a_manifest_size_resolves_open_channels(tmp_path: Path) -> None:
    """The error suggests this size."""
    with pytest.raises(ModelLoadError, match=r"set width and height in \[image\]"):
        picture_input(
            facts(tmp_path, {"logits": (-1, 2)}, image=OPEN), "image-classification"
        )
    manifest = {"image": {"width": 24, "height": 20}}

    array, _ = picture_input(
        facts(tmp_path, {"logits": (-1, 2)}, manifest, image=OPEN), "x"
    ).read(picture(90, 70))

    assert array.shape == (1, 3, 20, 24)


def test_an_incompatible_size_is_rejected(tmp_path: Path) -> None:
    spec = TensorSpec("x", "FP32", (-1, 3, 64, -1))
    manifest = {"image": {"width": 24, "height": 20}}

    with pytest.raises(ModelLoadError, match=r"correct width and height in \[image\]"):
        picture_input(
            facts(tmp_path, {"logits": (-1, 2)}, manifest, image=spec),
            "image-classification",
        )


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((-1, -1, 32, 32), True),
        ((-1, 32, 32, -1), False),
    ],
)
def test_open_channels_beside_fixed_sizes(
    tmp_path: Path, shape: tuple[int, ...], first: bool
) -> None:
    model = classifier(
        tmp_path, TensorSpec("x", "FP32", shape), {"num_channels": 3}, {}
    )

    assert picture_input(model, "image-classification").channels_first == first


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("ViTImageProcessor", 0),
        ("ViTFeatureExtractor", 0),
        ("MyProcessor", 1),
    ],
)
def test_an_unknown_processor_is_noted(tmp_path: Path, name: str, count: int) -> None:
    model = classifier(tmp_path, OPEN, {}, {"image_processor_type": name, "size": 32})

    select_task(model)

    assert sum("MyProcessor is unknown" in text for text in model.assumed) == count


SIDES = {"height": 32, "width": 32}


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("Owlv2ImageProcessor", {}, "image_processor_type = 'Owlv2ImageProcessor'"),
        ("RfDetrImageProcessorFast", {"size": SIDES}, "image_processor_type"),
        ("ViTImageProcessor", {"size": {"longest_edge": 32}}, "size"),
        ("ConvNextImageProcessor", {"size": SIDES}, "size"),
        ("ConvNextImageProcessor", {"do_center_crop": True}, "crop_size"),
        (
            "ConvNextImageProcessor",
            {"do_center_crop": True, "crop_size": 24},
            "do_center_crop",
        ),
        ("DetrImageProcessor", {"size": {"shortest_edge": 32}}, "size"),
        ("ViTImageProcessor", {"do_center_crop": True}, "crop_size"),
        ("CLIPImageProcessor", {"do_pad": True, "pad_size": 300}, "pad_size"),
        ("EomtImageProcessor", {"do_pad": True}, "do_pad"),
        ("DPTImageProcessor", {"do_pad": True, "size_divisor": 8}, "size_divisor"),
        ("PerceiverImageProcessor", {"size": 300}, "crop_size"),
        ("PerceiverImageProcessor", {"do_resize": False}, "do_resize"),
    ],
)
def test_settings_that_a_class_reads_otherwise_are_refused(
    tmp_path: Path, name: str, settings: dict[str, Any], key: str
) -> None:
    shape = (1, 3, 32, 32)
    processor = {"image_processor_type": name, **settings}
    model = classifier(tmp_path, TensorSpec("x", "FP32", shape), {}, processor)

    with pytest.raises(MetadataError, match=rf"not supported: .*\b{key}"):
        reject_unsupported_keys(model, "image-classification")


@pytest.mark.parametrize(
    ("name", "settings", "shape"),
    [
        ("SiglipImageProcessor", {"size": 32}, (32, 42)),
        ("ViTImageProcessor", {"size": 32}, (32, 32)),
        ("ViTImageProcessor", {"size": 32, "default_to_square": False}, (32, 42)),
        ("TextNetImageProcessor", {"size": {"shortest_edge": 33}}, (64, 64)),
        (
            "PoolFormerImageProcessor",
            {"size": SIDES, "crop_pct": 0.5, "do_center_crop": False},
            (64, 85),
        ),
        (
            "PoolFormerImageProcessor",
            {
                "size": {"height": 32, "width": 24},
                "crop_pct": 0.5,
                "do_center_crop": False,
            },
            (64, 48),
        ),
        (
            "ViTImageProcessor",
            {"size": {"shortest_edge": 32}, "do_pad": True, "pad_size": 50},
            (50, 50),
        ),
        ("DetrImageProcessor", {"size": 40, "max_size": 50}, (38, 50)),
    ],
)
def test_settings_are_read_as_by_their_class(
    tmp_path: Path, name: str, settings: dict[str, Any], shape: tuple[int, int]
) -> None:
    processor = {"image_processor_type": name, **settings}
    spec = TensorSpec("x", "FP32", (1, 3, -1, -1))
    task = select_task(classifier(tmp_path, spec, {}, processor))
    (run,) = task.prepare(picture(64, 48), NO_HINTS).runs

    assert run["x"].shape == (1, 3, *shape)


def test_a_fixed_input_takes_what_fits_of_varying_sizes(tmp_path: Path) -> None:
    """A processor's exact result comes before stretching to the input's size."""
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"shortest_edge": 24},
    }
    both = []
    for shape in ((1, 3, 24, 32), (1, 3, -1, -1)):
        model = classifier(tmp_path, TensorSpec("x", "FP32", shape), {}, processor)
        (run,) = select_task(model).prepare(picture(64, 48), NO_HINTS).runs
        both.append(run["x"])

    np.testing.assert_array_equal(*both)


def test_a_picture_without_a_middle_is_refused(tmp_path: Path) -> None:
    processor = {"image_processor_type": "PerceiverImageProcessor"}
    model = classifier(tmp_path, OPEN, {}, processor)

    with pytest.raises(ApiError, match="too small to be cropped"):
        picture_input(model, "image-classification").read(picture(1, 40))


# Detectors


def detector(
    folder: Path,
    logits: int,
    model_type: str | None,
    manifest: dict[str, Any] | None = None,
    spec: TensorSpec = OPEN,
) -> ModelFacts:
    config: dict[str, Any] = {
        "architectures": ["XForObjectDetection"],
        "id2label": NAMES,
    }
    if model_type is not None:
        config["model_type"] = model_type
    files = {"config.json": config, PROCESSOR: DETR_PROCESSOR}
    return facts(
        folder,
        {"logits": (1, 2, logits), "pred_boxes": (1, 2, 4)},
        manifest,
        files,
        spec,
    )


def outputs(logits: list[list[float]]) -> list[dict[str, Array]]:
    boxes = np.array([[[0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.5, 0.5]]], np.float32)
    return [{"logits": np.array([logits], np.float32), "pred_boxes": boxes}]


@pytest.mark.parametrize(
    ("model_type", "logits", "expected"),
    [
        ("detr", [[0, 4, 0], [0, 0, 4]], ["dog"]),
        ("yolos", [[0, 4, 0], [0, 0, 4]], ["dog"]),
        ("table-transformer", [[0, 4, 0], [0, 0, 4]], ["dog"]),
        ("rt_detr", [[-4, 4], [-4, -4]], ["dog"]),
        ("conditional_detr", [[-4, 4], [-4, -4]], ["dog"]),
        ("d_fine", [[3, 4], [-4, -4]], ["dog", "cat"]),
        ("new_detr", [[-4, 4], [-4, -4]], ["dog"]),
        ("new_detr", [[0, 4, 0], [0, 0, 4]], ["dog"]),
        (None, [[0, 4, 0], [0, 0, 4]], ["dog"]),
    ],
)
def test_the_activation_of_a_detectors_logits(
    tmp_path: Path, model_type: str, logits: list[list[float]], expected: list[str]
) -> None:
    """The model type determines it, or else the number of logits.

    Softmax has a "no object" class, unlike a sigmoid.
    """
    task: Any = select_task(detector(tmp_path, len(logits[0]), model_type))

    answer = task.answer(
        outputs(logits),
        AnswerOptions(threshold=0.5),
        task.prepare(picture(60, 60)).context,
    )

    assert [entry["label"] for entry in answer] == expected


def test_a_detector_of_unknown_kind_is_served_as_tensors(tmp_path: Path) -> None:
    task = select_task(detector(tmp_path, 7, "new_detr"))

    assert isinstance(task, tensors.Tensors)
    assert "2 labels" in task.problem
    assert "[detection] activation" in task.problem
    manifest = {"task": "object-detection", "detection": {"activation": "sigmoid"}}
    assert (
        select_task(detector(tmp_path, 7, "new_detr", manifest)).name
        == "object-detection"
    )


def test_boxes_of_an_input_of_varying_size(tmp_path: Path) -> None:
    """The whole picture keeps its proportions, and boxes are in its pixels."""
    task: Any = select_task(detector(tmp_path, 2, "rt_detr"))
    prepared = task.prepare(picture(400, 100))

    assert prepared.runs[0]["pixel_values"].shape == (1, 3, 20, 80)
    (entry,) = task.answer(
        outputs([[-4, 4], [-4, -4]]), AnswerOptions(), prepared.context
    )
    assert entry["box"] == {
        "x": 100,
        "y": 25,
        "width": 200,
        "height": 50,
    }


def test_a_detector_of_fixed_size_stretches_the_picture(tmp_path: Path) -> None:
    spec = TensorSpec("pixel_values", "FP32", (-1, 3, 64, 64))
    task: Any = select_task(detector(tmp_path, 2, "rt_detr", spec=spec))
    prepared = task.prepare(picture(400, 100))

    assert prepared.runs[0]["pixel_values"].shape == (1, 3, 64, 64)
    (entry,) = task.answer(
        outputs([[-4, 4], [-4, -4]]), AnswerOptions(), prepared.context
    )
    assert entry["box"] == {
        "x": 100,
        "y": 25,
        "width": 200,
        "height": 50,
    }


def test_a_picture_too_long_for_the_memory_is_rejected(tmp_path: Path) -> None:
    """Scaling up the shorter side must not make the longer side unbounded."""
    model = facts(
        tmp_path,
        {"logits": (-1, 2)},
        files={
            PROCESSOR: {
                "image_processor_type": "BitImageProcessor",
                "do_center_crop": False,
            }
        },
        image=OPEN,
    )

    with pytest.raises(Exception, match="pixels; "):
        picture_input(model, "image-classification").read(picture(2, 5000))


def test_numbers_of_an_input_of_varying_size(tmp_path: Path) -> None:
    """The tensor itself can have any size.

    Boxes are in its pixels.
    """
    task: Any = select_task(detector(tmp_path, 2, "rt_detr"))
    rows = np.zeros((1, 3, 10, 20)).tolist()
    prepared = task.prepare(memoryview(str(rows).encode()))

    assert prepared.runs[0]["pixel_values"].shape == (1, 3, 10, 20)
    (entry,) = task.answer(
        outputs([[-4, 4], [-4, -4]]), AnswerOptions(), prepared.context
    )
    assert entry["box"] == {
        "x": 5,
        "y": 2.5,
        "width": 10,
        "height": 5,
    }


# Masks


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((-1, 64, 64), (1, 64, 64)),
        ((-1, -1, -1), (1, 20, 80)),
        ((1, 20, 80), (1, 20, 80)),
    ],
)
def test_a_mask_is_filled_with_ones(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    model = detector(tmp_path, 3, "detr")
    mask = TensorSpec("pixel_mask", "INT64", shape)
    both = ModelFacts(
        model.entry, model.version, (*model.inputs, mask), model.outputs, {}, 10**7
    )

    assert takes_picture(both)
    runs = select_task(both).prepare(picture(400, 100)).runs

    assert runs[0]["pixel_mask"].dtype == np.int64
    assert runs[0]["pixel_mask"].shape == expected
    assert runs[0]["pixel_mask"].all()


def test_padding_is_zero_and_masked(tmp_path: Path) -> None:
    processor = {
        **DETR_PROCESSOR,
        "do_pad": True,
        "pad_size": {"height": 64, "width": 96},
    }
    config = {
        "architectures": ["XForObjectDetection"],
        "id2label": NAMES,
        "model_type": "detr",
    }
    shapes = {"logits": (1, 2, 3), "pred_boxes": (1, 2, 4)}
    model = facts(
        tmp_path,
        shapes,
        files={"config.json": config, PROCESSOR: processor},
        image=OPEN,
    )
    mask = TensorSpec("pixel_mask", "INT64", (-1, -1, -1))
    both = ModelFacts(
        model.entry, model.version, (*model.inputs, mask), model.outputs, {}, 10**7
    )

    (run,) = select_task(both).prepare(picture(400, 100)).runs

    assert run["pixel_values"].shape == (1, 3, 64, 96)
    assert run["pixel_mask"].sum() == 20 * 80
    assert run["pixel_mask"][0, :20, :80].all()
    assert not run["pixel_values"][0, :, 20:].any()
    assert not run["pixel_values"][0, :, :, 80:].any()


# Segmenters


def segmenter(
    folder: Path, shapes: dict[str, tuple[int, ...]], config: dict[str, Any], count: int
) -> Any:
    names = {str(number): f"class {number}" for number in range(count)}
    files = {
        "config.json": {"id2label": names, **config},
        PROCESSOR: {"size": {"height": 64, "width": 64}},
    }
    return select_task(facts(folder, shapes, files=files, image=OPEN))


@pytest.mark.parametrize(
    "shape",
    [
        (1, 40, 16, 16),
        (-1, 40, -1, -1),
        (-1, -1, -1, -1),
    ],
)
def test_a_map_with_more_classes_than_rows(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """SegFormer has 150 classes, and 128 rows and columns."""
    task = segmenter(
        tmp_path, {"logits": shape}, {"architectures": ["XForSemanticSegmentation"]}, 40
    )
    scores = np.zeros((1, 40, 16, 16), np.float32)
    scores[0, 7, :, :12] = scores[0, 39, :, 12:] = 1

    answer = task.answer(
        [{"logits": scores}], AnswerOptions(), task.prepare(picture(50, 50)).context
    )

    assert [(entry["label"], entry["share"]) for entry in answer] == [
        ("class 7", 0.75),
        ("class 39", 0.25),
    ]


def test_labels_identify_a_maps_class_axis(tmp_path: Path) -> None:
    """Without the library's file, the class axis is the one as long as the labels."""
    labels = {"labels.txt": "\n".join(f"class {number}" for number in range(40))}
    for shape in ((1, 40, 16, 16), (1, 16, 16, 40)):
        task: Any = select_task(facts(tmp_path, {"map": shape}, files=labels))
        scores = np.zeros(shape, np.float32)
        scores[0, 7] = 1 if shape[1] == 40 else 0
        scores[0, :, :, 7] = scores[0, :, :, 7] if shape[1] == 40 else 1

        answer = task.answer(
            [{"map": scores}], AnswerOptions(), task.prepare(picture(50, 50)).context
        )

        assert answer[0]["label"] == "class 7"


def test_masks_of_queries(tmp_path: Path) -> None:
    """MaskFormer weights masks by their classes.

    The last class is "no object".
    """
    shapes = {"class_queries_logits": (-1, 3, 3), "masks_queries_logits": (-1, 3, 8, 8)}
    task = segmenter(
        tmp_path, shapes, {"architectures": ["MaskFormerForInstanceSegmentation"]}, 2
    )
    classes = np.array([[[9, 0, 0], [0, 9, 0], [0, 0, 9]]], np.float32)
    masks = np.full((1, 3, 8, 8), -9, np.float32)
    masks[0, 0, :, :2] = masks[0, 1, :, 2:] = masks[0, 2] = 9

    runs = [{"class_queries_logits": classes, "masks_queries_logits": masks}]
    answer = task.answer(runs, AnswerOptions(), task.prepare(picture(50, 50)).context)

    assert [(entry["label"], entry["share"]) for entry in answer] == [
        ("class 1", 0.75),
        ("class 0", 0.25),
    ]


# Several outputs of a classifier


def ranked(
    folder: Path, shapes: dict[str, tuple[int, ...]], manifest: dict[str, Any]
) -> str:
    """Return the answer's label if each output's last class is the best."""
    task: Any = select_task(
        facts(
            folder,
            shapes,
            {"task": "image-classification", **manifest},
            {"labels.txt": "red\ngreen\nblue\n"},
        )
    )
    runs = [
        {
            name: np.arange(shape[-1], dtype=np.float32)[None]
            for name, shape in shapes.items()
        }
    ]
    label: str = task.answer(runs, AnswerOptions(), None)[0]["label"]
    return label


@pytest.mark.parametrize(
    ("shapes", "manifest"),
    [
        ({"features": (1, 8), "y": (1, 3)}, {}),
        ({"features": (1, 3), "logits": (1, 3)}, {}),
        ({"a": (1, 3), "b": (1, 3)}, {"classification": {"output": "b"}}),
        ({"features": (1, 8), "y": (1, 3)}, {"classification": {"output": "y"}}),
    ],
)
def test_the_scores_output_is_found(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], manifest: dict[str, Any]
) -> None:
    assert ranked(tmp_path, shapes, manifest) == "blue"


def test_additional_outputs_of_a_library_classifier(tmp_path: Path) -> None:
    """DeiT with a teacher returns the scores of both heads and their mean."""
    config = {
        "architectures": ["DeiTForImageClassificationWithTeacher"],
        "id2label": NAMES,
    }
    shapes = {
        "cls_logits": (-1, 2),
        "distillation_logits": (-1, 2),
        "logits": (-1, 2),
    }
    task: Any = select_task(facts(tmp_path, shapes, files={"config.json": config}))
    runs = [{name: np.zeros((1, 2), np.float32) for name in shapes}]
    runs[0]["logits"][0, 1] = 9

    assert task.name == "image-classification"
    assert task.answer(runs, AnswerOptions(), None)[0]["label"] == "dog"


def test_the_named_output_wins(tmp_path: Path) -> None:
    shapes = {"features": (1, 8), "y": (1, 3)}

    assert ranked(tmp_path, shapes, {"classification": {"output": "features"}}) == "7"


def test_ambiguous_score_outputs_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"classification\.output"):
        ranked(tmp_path, {"a": (1, 3), "b": (1, 3)}, {})
