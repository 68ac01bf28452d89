"""Picture keys: an applied key changes the input, an unsupported one is named."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.task_registry import TASK_NAMES, task_named
from pocketserve.tasks import tensors
from pocketserve.tasks.foreign import config_json, preprocessor_config
from pocketserve.tasks.foreign.keys import Effect, Key
from pocketserve.tasks.foreign.registry import unknown_keys
from pocketserve.tasks.selection import select_task
from pocketserve.tasks.vision.picture_input import picture_input
from pocketserve.tensors import Array, TensorSpec
from vision_models import facts, picture

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

OPEN = TensorSpec("pixel_values", "FP32", (-1, -1, -1, -1))
FIXED = TensorSpec("pixel_values", "FP32", (-1, 3, 32, 32))
SQUARE = {"height": 32, "width": 32}
VIT = {"image_processor_type": "ViTImageProcessor", "size": SQUARE}
DETR = {
    "image_processor_type": "DetrImageProcessor",
    "size": {"shortest_edge": 32, "longest_edge": 64},
}
WITHIN = {
    "image_processor_type": "DetrImageProcessor",
    "size": {"max_height": 64, "max_width": 64},
}
CROPPED = {
    **VIT,
    "do_center_crop": True,
    "crop_size": SQUARE,
}
CONFIG = {
    "architectures": ["XForImageClassification"],
    "id2label": {"0": "a", "1": "b", "2": "c"},
}
EFFICIENT_NET = {**VIT, "image_processor_type": "EfficientNetImageProcessor"}

CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "image_processor_type": (VIT, {"image_processor_type": "PvtImageProcessor"}),
    "feature_extractor_type": (
        {"feature_extractor_type": "ViTFeatureExtractor", "size": 32},
        {"feature_extractor_type": "DetrFeatureExtractor"},
    ),
    "do_resize": (
        {**VIT, "do_center_crop": True, "crop_size": 32},
        {"do_resize": False},
    ),
    "size": ({"size": 32}, {"size": [32, 48]}),
    "size.height": (VIT, {"size": {"height": 48, "width": 32}}),
    "size.width": (VIT, {"size": {"height": 32, "width": 48}}),
    "size.shortest_edge": (DETR, {"size": {"shortest_edge": 24, "longest_edge": 64}}),
    "size.longest_edge": (DETR, {"size": {"shortest_edge": 32, "longest_edge": 48}}),
    "size.max_height": (WITHIN, {"size": {"max_height": 30, "max_width": 64}}),
    "size.max_width": (WITHIN, {"size": {"max_height": 64, "max_width": 48}}),
    "default_to_square": ({"size": 32}, {"default_to_square": False}),
    "do_center_crop": ({**VIT, "crop_size": 24}, {"do_center_crop": True}),
    "crop_size": ({**VIT, "do_center_crop": True, "crop_size": 32}, {"crop_size": 24}),
    "crop_size.height": (CROPPED, {"crop_size": {"height": 24, "width": 32}}),
    "crop_size.width": (CROPPED, {"crop_size": {"height": 32, "width": 24}}),
    "do_rescale": (VIT, {"do_rescale": False}),
    "rescale_factor": (VIT, {"rescale_factor": 0.0078}),
    "do_normalize": (VIT, {"do_normalize": False}),
    "image_mean": (VIT, {"image_mean": [0.1, 0.2, 0.3]}),
    "image_std": (VIT, {"image_std": [0.1, 0.2, 0.3]}),
    "do_pad": ({**DETR, "pad_size": {"height": 64, "width": 64}}, {"do_pad": False}),
    "pad_size": (
        {**DETR, "pad_size": {"height": 64, "width": 64}},
        {"pad_size": {"height": 80, "width": 64}},
    ),
    "max_size": (
        {"feature_extractor_type": "DetrFeatureExtractor", "size": 32, "max_size": 64},
        {"max_size": 36},
    ),
    "crop_pct": (
        {
            "image_processor_type": "ConvNextImageProcessor",
            "size": {"shortest_edge": 32},
        },
        {"crop_pct": 0.5},
    ),
    "size_multiple_above": (
        {**DETR, "image_processor_type": "MaskFormerImageProcessor"},
        {"size_divisor": 48},
    ),
    "do_flip_channel_order": (
        {**VIT, "image_processor_type": "MobileViTImageProcessor"},
        {"do_flip_channel_order": False},
    ),
    "rescale_offset": (EFFICIENT_NET, {"rescale_offset": True}),
    "include_top": (EFFICIENT_NET, {"include_top": False}),
    "ensure_multiple_of": (
        {**VIT, "image_processor_type": "DPTImageProcessor"},
        {"ensure_multiple_of": 24},
    ),
}

ENABLED: dict[str, dict[str, Any]] = {
    "crop_size.*": {"do_center_crop": True},
    "size_divisor": {"do_pad": True},
    "size_divisibility": {"do_pad": True},
    "clusters": {"do_color_quantize": True},
}
"""Further keys that an unsupported key needs to have an effect."""

TIMM: dict[str, Any] = {
    **{
        "input_size": [3, 32, 32],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
    },
    **{"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
}
TIMM_CHANGES: dict[str, Any] = {
    **{
        "input_size": [3, 48, 48],
        "interpolation": "nearest",
        "crop_pct": 0.5,
        "crop_mode": "squash",
    },
    **{"mean": [0.1, 0.2, 0.3], "std": [0.2, 0.3, 0.4]},
}

OF_PICTURES = preprocessor_config.TABLE.keys
LABELS_OF_TIMM = ("pretrained_cfg.label_names", "pretrained_cfg.labels")
OF_TIMM = [
    row
    for row in config_json.TABLE.keys
    if row.path.startswith("pretrained_cfg.") and row.path not in LABELS_OF_TIMM
]


def having(rows: Sequence[Key], effect: Effect) -> list[str]:
    return [row.path for row in rows if row.effect is effect]


def photo() -> memoryview:
    """Return a wide picture without symmetries."""
    random = np.random.default_rng(5)
    x = np.linspace(0, 200, 90)[None, :, None]
    y = np.linspace(0, 150, 50)[:, None, None]
    pixels = np.concatenate(
        [
            x + 0 * y,
            y + 0 * x,
            (x + y) / 3,
        ],
        axis=2,
    ) + random.uniform(0, 50, (50, 90, 3))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return memoryview(file.getvalue())


def tensor_of(folder: Path, files: dict[str, Any], spec: TensorSpec = OPEN) -> Array:
    """Return the input tensor of a model with these files."""
    model = facts(
        folder, {"logits": (-1, 3)}, files={"config.json": CONFIG, **files}, image=spec
    )
    return picture_input(model, "image-classification").read(photo())[0]


def are_equal(first: Array, second: Array) -> bool:
    return first.shape == second.shape and bool(np.allclose(first, second))


@pytest.mark.parametrize("key", having(OF_PICTURES, Effect.APPLIED))
def test_an_applied_key_changes_the_input(tmp_path: Path, key: str) -> None:
    base, change = CHANGES[key]

    before = tensor_of(tmp_path, {preprocessor_config.NAME: base})
    after = tensor_of(tmp_path, {preprocessor_config.NAME: {**base, **change}})

    assert not are_equal(before, after)


@pytest.mark.parametrize("key", having(OF_PICTURES, Effect.HARMLESS))
def test_a_harmless_key_changes_nothing(tmp_path: Path, key: str) -> None:
    before = tensor_of(tmp_path, {preprocessor_config.NAME: VIT})
    after = tensor_of(tmp_path, {preprocessor_config.NAME: {**VIT, key: True}})

    assert are_equal(before, after)


@pytest.mark.parametrize("key", having(OF_PICTURES, Effect.UNSUPPORTED))
def test_an_unsupported_key_is_named(tmp_path: Path, key: str) -> None:
    value = 32 if key.startswith("size_") else True
    content = {**VIT, **ENABLED.get(key, {})}
    name, _, inner = key.partition(".")
    if inner:
        key = f"{name}.other"
        content[name] = {**SQUARE, "other": value}
    else:
        content[key] = value
    files = {"config.json": CONFIG, preprocessor_config.NAME: content}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=OPEN))

    assert isinstance(task, tensors.Tensors)
    assert f"{key} = {value}" in task.problem


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("PIL.Image.BOX", 4),
        ("bicubic", 3),
        ("PILImageResampling.LANCZOS", 1),
    ],
)
def test_a_filter_can_be_a_name(tmp_path: Path, value: str, number: int) -> None:
    by_name = tensor_of(
        tmp_path, {preprocessor_config.NAME: {**VIT, "resample": value}}
    )
    by_number = tensor_of(
        tmp_path, {preprocessor_config.NAME: {**VIT, "resample": number}}
    )

    assert are_equal(by_name, by_number)


def test_a_section_of_processor_config_has_priority(tmp_path: Path) -> None:
    section = {**VIT, "image_mean": [0.1, 0.2, 0.3]}
    alone = tensor_of(tmp_path, {preprocessor_config.NAME: section})
    files = {
        "processor_config.json": {"image_processor": section},
        preprocessor_config.NAME: VIT,
    }

    assert are_equal(tensor_of(tmp_path, files), alone)


def test_an_unsupported_key_of_a_section_is_named_with_its_file(tmp_path: Path) -> None:
    content = {"image_processor": {**VIT, "do_thumbnail": True}}
    files = {"config.json": CONFIG, "processor_config.json": content}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=OPEN))

    assert isinstance(task, tensors.Tensors)
    assert task.problem.startswith("processor_config.json")


def test_unsupported_keys_apply_to_all_tasks_with_pictures() -> None:
    tasks_with_pictures = {
        name for name in TASK_NAMES if task_named(name).takes_pictures
    } - {"custom"}

    for row in OF_PICTURES:
        if row.effect is Effect.UNSUPPORTED:
            assert set(row.tasks) == tasks_with_pictures


def test_a_default_of_the_processor_class_applies(tmp_path: Path) -> None:
    """The file doesn't mention colour clusters, but its class uses them."""
    content = {"image_processor_type": "ImageGPTImageProcessor", "size": SQUARE}
    files = {"config.json": CONFIG, preprocessor_config.NAME: content}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=OPEN))

    assert isinstance(task, tensors.Tensors)
    assert "do_color_quantize = True" in task.problem


@pytest.mark.parametrize(
    "name", ["MaskFormerImageProcessor", "Mask2FormerImageProcessor"]
)
@pytest.mark.parametrize(
    ("spec", "is_fixed"),
    [
        (FIXED, True),
        (OPEN, False),
    ],
)
def test_sides_of_a_free_size_are_rounded_up_to_a_multiple(
    tmp_path: Path, name: str, spec: TensorSpec, is_fixed: bool
) -> None:
    files = {
        "config.json": CONFIG,
        preprocessor_config.NAME: {"image_processor_type": name},
    }

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=spec))

    assert task.name == "image-classification"
    run = task.prepare(picture(100, 50)).runs[0]
    shape = run["pixel_values"].shape
    sides = tuple(spec.shape[2:]) if is_fixed else (672, 1344)
    assert shape == (1, 3, *sides)
    assert np.abs(run["pixel_values"][0, :, -1]).max() > 0.1  # no padding


@pytest.mark.parametrize(
    ("spec", "is_fixed"),
    [
        (FIXED, True),
        (OPEN, False),
    ],
)
def test_padding_to_a_multiple_matters_only_for_inputs_of_a_free_size(
    tmp_path: Path, spec: TensorSpec, is_fixed: bool
) -> None:
    content = {
        **VIT,
        "do_pad": True,
        "size_divisor": 32,
    }
    files = {"config.json": CONFIG, preprocessor_config.NAME: content}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=spec))

    if is_fixed:
        assert task.name == "image-classification"
    else:
        assert isinstance(task, tensors.Tensors)
        assert "size_divisor = 32" in task.problem


def test_the_advice_lists_all_unsupported_keys(tmp_path: Path) -> None:
    content = {
        **VIT,
        "do_crop_margin": True,
        "do_thumbnail": True,
    }
    files = {"config.json": CONFIG, preprocessor_config.NAME: content}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=OPEN))

    assert isinstance(task, tensors.Tensors)
    advice = task.problem.partition("ignored_keys = ")[2]
    keys, _ = json.JSONDecoder().raw_decode(advice)
    (tmp_path / "ignored").mkdir()
    manifest = {"ignored_keys": keys}
    model = facts(tmp_path / "ignored", {"logits": (-1, 3)}, manifest, files, OPEN)
    assert keys == ["do_crop_margin", "do_thumbnail"]
    assert select_task(model).name == "image-classification"


@pytest.mark.parametrize(
    ("name", "keys", "named"),
    [
        ("Levit", {"size": {"shortest_edge": 24, "longest_edge": 40}}, "size"),
        ("ViT", {"size": SQUARE, "do_center_crop": True}, "crop_size"),
        ("Swin2SR", {"size": SQUARE}, "image_processor_type"),
    ],
)
def test_keys_that_a_class_reads_otherwise_are_named(
    tmp_path: Path, name: str, keys: dict[str, Any], named: str
) -> None:
    content = {"image_processor_type": f"{name}ImageProcessor", **keys}
    files = {"config.json": CONFIG, preprocessor_config.NAME: content}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=OPEN))

    assert isinstance(task, tensors.Tensors)
    assert f"not supported: {named} = " in task.problem


def test_ignored_keys_override_a_default(tmp_path: Path) -> None:
    content = {"image_processor_type": "ImageGPTImageProcessor", "size": SQUARE}
    files = {"config.json": CONFIG, preprocessor_config.NAME: content}
    manifest = {"ignored_keys": ["do_color_quantize"]}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, manifest, files, OPEN))

    assert task.name == "image-classification"


def test_the_example_of_an_ignored_key_is_unsupported() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "manifest.md"
    line = next(
        line
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `ignored_keys`")
    )
    example = re.findall(r"`(\[.*?\])`", line)[-1]

    for key in json.loads(example):
        assert key in having(OF_PICTURES, Effect.UNSUPPORTED)


def test_an_unknown_key_is_reported(tmp_path: Path) -> None:
    files = {preprocessor_config.NAME: {**VIT, "do_magic": True}}

    unknown = unknown_keys(facts(tmp_path, {"logits": (-1, 3)}, files=files))

    assert unknown == {preprocessor_config.NAME: ("do_magic",)}


@pytest.mark.parametrize(
    "config",
    [
        {"label_names": ["a", "b", "c"], "pretrained_cfg": TIMM},
        {"label_names": {"0": "a", "1": "b", "2": "c"}, "pretrained_cfg": TIMM},
        {"pretrained_cfg": {**TIMM, "label_names": ["a", "b", "c"]}},
        {"architecture": "resnet18", "labels": ["a", "b", "c"], **TIMM},
    ],
    ids=["list", "map", "section", "without section"],
)
def test_timm_names(tmp_path: Path, config: dict[str, Any]) -> None:
    model = facts(
        tmp_path, {"logits": (-1, 3)}, files={"config.json": config}, image=FIXED
    )
    task = select_task(model)
    whole = {"pretrained_cfg": TIMM}

    assert list(task.labels) == ["a", "b", "c"]
    assert are_equal(
        tensor_of(tmp_path, {"config.json": config}),
        tensor_of(tmp_path, {"config.json": whole}),
    )


def test_missing_timm_settings_have_its_defaults(tmp_path: Path) -> None:
    defaults = {
        **TIMM,
        "crop_pct": 0.875,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    }
    few = {"pretrained_cfg": {"input_size": TIMM["input_size"]}}

    assert are_equal(
        tensor_of(tmp_path, {"config.json": few}),
        tensor_of(tmp_path, {"config.json": {"pretrained_cfg": defaults}}),
    )


def test_an_unsupported_timm_key_without_a_section_is_named(tmp_path: Path) -> None:
    config = {
        "architecture": "resnet18",
        "labels": ["a", "b", "c"],
        "crop_border_pixels": 4,
        **TIMM,
    }

    task = select_task(
        facts(tmp_path, {"logits": (-1, 3)}, files={"config.json": config}, image=FIXED)
    )

    assert isinstance(task, tensors.Tensors)
    assert "pretrained_cfg.crop_border_pixels = 4" in task.problem


@pytest.mark.parametrize("key", having(OF_TIMM, Effect.APPLIED))
def test_an_applied_timm_key_changes_the_input(tmp_path: Path, key: str) -> None:
    name = key.removeprefix("pretrained_cfg.")

    before = tensor_of(tmp_path, {"config.json": {"pretrained_cfg": TIMM}})
    after = tensor_of(
        tmp_path,
        {"config.json": {"pretrained_cfg": {**TIMM, name: TIMM_CHANGES[name]}}},
    )

    assert not are_equal(before, after)


@pytest.mark.parametrize("key", having(OF_TIMM, Effect.HARMLESS))
def test_a_harmless_timm_key_changes_nothing(tmp_path: Path, key: str) -> None:
    name = key.removeprefix("pretrained_cfg.")

    before = tensor_of(tmp_path, {"config.json": {"pretrained_cfg": TIMM}})
    after = tensor_of(
        tmp_path, {"config.json": {"pretrained_cfg": {**TIMM, name: [3, 64, 64]}}}
    )

    assert are_equal(before, after)


@pytest.mark.parametrize("key", having(OF_TIMM, Effect.UNSUPPORTED))
def test_an_unsupported_timm_key_is_named(tmp_path: Path, key: str) -> None:
    name = key.removeprefix("pretrained_cfg.")
    config = {"label_names": ["a", "b", "c"], "pretrained_cfg": {**TIMM, name: 4}}

    task = select_task(
        facts(tmp_path, {"logits": (-1, 3)}, files={"config.json": config}, image=FIXED)
    )

    assert isinstance(task, tensors.Tensors)
    assert f"{key} = 4" in task.problem


@pytest.mark.parametrize(
    "content",
    [
        {
            "size": {"height": "x"},
            "crop_size": [1, 2, 3],
            "resample": [],
            "rescale_factor": {},
            "crop_pct": "0.9",
        },
        {
            "image_processor_type": ["ViT"],
            "size": [],
            "do_center_crop": 1,
            "crop_size": {"height": -1, "width": 1e9},
        },
        {
            "image_processor_type": {},
            "feature_extractor_type": 3,
            "size": {"shortest_edge": 10**9},
            "pad_size": "a",
        },
        {
            "size": True,
            "max_size": [],
            "do_pad": "yes",
            "size_divisor": {},
            "default_to_square": False,
        },
    ],
)
def test_values_of_wrong_types_raise_nothing(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    """The file is untrusted.

    The model is served for pictures of its own size, or as tensors.
    """
    config = {
        **CONFIG,
        "model_type": ["x"],
        "num_channels": "3",
    }
    files = {"config.json": config, preprocessor_config.NAME: content}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=FIXED))

    assert task.name in ("image-classification", "tensors")


CROP = {"do_center_crop": True, "crop_size": 24}
PAD = {"do_pad": True, "pad_size": {"height": 48, "width": 48}}
RECTANGLE = {"height": 32, "width": 40}
EDGE = {"shortest_edge": 28}
EDGES = {"shortest_edge": 24, "longest_edge": 40}
LIMITS = {"max_height": 40, "max_width": 48}
SHAPES: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "Segformer does not crop": ("Segformer", {"size": RECTANGLE, **CROP}, (32, 40)),
    "DETR does not crop": ("Detr", {"size": EDGES, **CROP}, (24, 32)),
    "MaskFormer does not crop": ("MaskFormer", {"size": RECTANGLE, **CROP}, (32, 64)),
    "ViT crops": ("ViT", {"size": RECTANGLE, **CROP}, (24, 24)),
    "CLIP crops what fits into limits": ("CLIP", {"size": LIMITS, **CROP}, (24, 24)),
    "BEiT does not pad": ("Beit", {"size": RECTANGLE, **PAD}, (32, 40)),
    "DETR pads": ("Detr", {"size": RECTANGLE, **PAD}, (48, 48)),
    "ViT pads": ("ViT", {"size": RECTANGLE, **PAD}, (48, 48)),
    "LeViT enlarges": ("Levit", {"size": EDGE, "do_center_crop": False}, (32, 42)),
    "MaskFormer rounds limits up": ("Mask2Former", {"size": LIMITS}, (64, 64)),
    "ViT reads no offset": (
        "ViT",
        {"size": RECTANGLE, "rescale_offset": True},
        (32, 40),
    ),
}
"""Processors, keys, and (height, width) of the result for a picture of 64x48 pixels, as transformers gives it."""


@pytest.mark.parametrize("case", SHAPES)
def test_keys_have_the_effect_that_their_class_gives_them(
    tmp_path: Path, case: str
) -> None:
    name, keys, shape = SHAPES[case]
    content = {"image_processor_type": f"{name}ImageProcessor", **keys}
    files = {"config.json": CONFIG, preprocessor_config.NAME: content}

    task = select_task(facts(tmp_path, {"logits": (-1, 3)}, files=files, image=OPEN))

    values = task.prepare(picture(64, 48)).runs[0]["pixel_values"]
    assert values.shape == (1, 3, *shape)
    if name == "ViT" and "rescale_offset" in keys:
        assert values.min() < -0.9  # from -1 to 1
    if name == "ViT" and "pad_size" in keys:
        assert not values[0, :, 32:].any()
        assert not values[0, :, :, 40:].any()
