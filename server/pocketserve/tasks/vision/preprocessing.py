"""What files say of a picture model's preprocessing: TFLite metadata, ONNX metadata, Hugging Face's JSON files.

The manifest's ``[image]`` comes first, key by key; then these in the order below; then the defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import ImageProperties
from pocketserve.tasks.model_facts import CONFIG, ModelFacts, literal
from pocketserve.tasks.vision.options import ImageOptions

PREPROCESSOR = "preprocessor_config.json"
MAX_SIDE = 1 << 14

_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which Hugging Face writes into its files."""


def image_options(facts: ModelFacts) -> ImageOptions:
    """The manifest's options, completed by what the model's files say.

    Raises:
        ModelLoadError: a file beside the model cannot be read.
    """
    options = facts.manifest.section(ImageOptions)
    for source in (_tflite, _onnx, _hugging_face, _timm):
        options = complete(options, source(facts))
    return options


def complete(options: ImageOptions, more: ImageOptions) -> ImageOptions:
    """Options whose missing keys are taken from others. Mean and std belong together, and so does how to resize."""
    taken: dict[str, Any] = {key: getattr(options, key) for key in ("color", "resample", "fill", "size")}
    taken = {key: getattr(more, key) if value is None else value for key, value in taken.items()}
    if options.mean is None and options.std is None:
        taken |= {"mean": more.mean, "std": more.std}
    elif options.mean is None or options.std is None:
        taken |= {"mean": options.mean or more.mean, "std": options.std or more.std}
    if options.resize is None:
        fraction = more.crop_fraction if options.crop_fraction is None else options.crop_fraction
        taken |= {"resize": more.resize, "crop_fraction": fraction}
    return dataclasses.replace(options, **taken)


def _tflite(facts: ModelFacts) -> ImageOptions:
    asked = facts.asked
    if facts.metadata is None or len(asked) != 1 or len(facts.metadata.inputs) != len(facts.inputs):
        return ImageOptions()
    tensor = facts.metadata.inputs[facts.inputs.index(asked[0])]
    found = ImageOptions()
    if tensor.normalization is not None:
        found = dataclasses.replace(found, mean=tensor.normalization.mean, std=tensor.normalization.std)
    properties = tensor.content.properties if tensor.content is not None else None
    size = properties.default_size if isinstance(properties, ImageProperties) else None
    return dataclasses.replace(found, size=size) if size is not None and _is_size(*size) else found


def _onnx(facts: ModelFacts) -> ImageOptions:
    """Ultralytics' exports, and the fields of Windows ML that Azure's Custom Vision writes."""
    properties = facts.properties
    found = ImageOptions()
    if is_ultralytics(facts):
        classify = properties.get("task") == "classify"
        found = ImageOptions(mean=(0.0,), std=(255.0,), resize="crop" if classify else "letterbox", fill=(114.0,))
        sides = literal(properties.get("imgsz", ""))
        if isinstance(sides, list) and len(sides) == 2 and _is_size(*sides):
            found = dataclasses.replace(found, size=(sides[1], sides[0]))
    ranges = {"NominalRange_0_255": ((0.0,), (1.0,)), "Normalized_0_1": ((0.0,), (255.0,))}
    ranges["Normalized_1_1"] = ((127.5,), (127.5,))
    mean, std = ranges.get(properties.get("Image.NominalPixelRange", ""), (found.mean, found.std))
    colour = {"Bgr8": "bgr", "Rgb8": "rgb", "Gray8": "grayscale"}.get(properties.get("Image.BitmapPixelFormat", ""))
    return dataclasses.replace(found, mean=mean, std=std, color=colour)


def _hugging_face(facts: ModelFacts) -> ImageOptions:
    """``preprocessor_config.json``: rescaling comes before normalisation, so both become one mean and std in pixels."""
    config = facts.json_beside(PREPROCESSOR)
    if not config:
        return ImageOptions()
    factor = _number(config, "rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if config.get("do_normalize", True) and config.get("image_mean") and config.get("image_std"):
        mean, std = (_numbers(config, key) for key in ("image_mean", "image_std"))
    size, crop = _size(config.get("size")), _size(config.get("crop_size"))
    found = ImageOptions(
        mean=tuple(value / factor for value in mean),
        std=tuple(value / factor for value in std),
        resample=_RESAMPLE.get(config.get("resample", -1)),
        size=crop if config.get("do_center_crop") and crop else size,
    )
    given = config.get("size")
    shortest = given.get("shortest_edge") if isinstance(given, dict) else None
    shortest = shortest if _is_size(shortest) else None
    if config.get("do_center_crop") and crop is not None:
        edge = shortest or min(size or crop)
        found = dataclasses.replace(found, resize="crop", crop_fraction=min(1.0, min(crop) / edge))
    elif shortest is not None:  # ConvNeXT and others: crop_pct of it
        fraction = config.get("crop_pct")
        share = fraction if isinstance(fraction, float) and 0 < fraction <= 1 else 1.0
        found = dataclasses.replace(found, resize="crop", crop_fraction=share, size=(shortest, shortest))
    return found


def _timm(facts: ModelFacts) -> ImageOptions:
    """``pretrained_cfg`` in the ``config.json`` of a timm model."""
    config = facts.json_beside(CONFIG).get("pretrained_cfg")
    if not isinstance(config, dict) or not config.get("mean") or not config.get("std"):
        return ImageOptions()
    fraction = config.get("crop_pct")
    return ImageOptions(
        mean=tuple(255 * value for value in _numbers(config, "mean")),
        std=tuple(255 * value for value in _numbers(config, "std")),
        resample=config["interpolation"] if config.get("interpolation") in _RESAMPLE.values() else None,
        resize="crop",
        crop_fraction=fraction if isinstance(fraction, float) and 0 < fraction <= 1 else 1.0,
    )


def is_ultralytics(facts: ModelFacts) -> bool:
    """Return whether the file is an export of Ultralytics' YOLO, by the metadata that it writes into ONNX files."""
    return {"names", "task", "stride"} <= set(facts.properties)


def _numbers(config: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = config[key] if isinstance(config[key], list) else [config[key]]
    if not all(isinstance(value, int | float) and abs(value) < 1e6 for value in values) or (
        key.endswith("std") and 0 in values
    ):
        raise ModelLoadError(f"{key} beside the model holds no usable numbers")
    return tuple(float(value) for value in values)


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    return float(value) if isinstance(value, int | float) and 0 < value < 1e6 else default


def _size(value: Any) -> tuple[int, int] | None:
    """(width, height) of ``{"height", "width"}``, ``[height, width]`` or one number."""
    if isinstance(value, dict):
        value = [value.get("height"), value.get("width")]
    if isinstance(value, int):
        value = [value, value]
    if isinstance(value, list) and len(value) == 2 and _is_size(*value):
        return value[1], value[0]
    return None


def _is_size(*sides: Any) -> bool:
    return all(type(side) is int and 0 < side <= MAX_SIDE for side in sides)
