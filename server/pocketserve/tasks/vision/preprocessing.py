"""Preprocessing as a picture model's files tell it: TFLite metadata, ONNX metadata, Hugging Face's JSON files.

The manifest's ``[image]`` comes first, key by key; then these in the order below; then the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import ImageProperties
from pocketserve.tasks.model_facts import CONFIG, ModelFacts, literal
from pocketserve.tasks.vision.options import ImageOptions

MAX_SIDE = 1 << 14

_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which Hugging Face writes into its files."""

_PIXEL_RANGES = {
    "NominalRange_0_255": ((0.0,), (1.0,)),
    "Normalized_0_1": ((0.0,), (255.0,)),
    "Normalized_1_1": ((127.5,), (127.5,)),
}


def image_options(facts: ModelFacts) -> ImageOptions:
    """Return the manifest's options, completed by what the model's files say."""
    options = facts.manifest.section(ImageOptions)
    for source in (_tflite, _onnx, _hugging_face, _timm):
        options = complete(options, source(facts))
    return options


def complete(options: ImageOptions, more: ImageOptions) -> ImageOptions:
    """Take missing keys from other options; ``crop_fraction`` only together with ``resize``."""
    keys = ["color", "resample", "fill", "size", "mean", "std"]
    keys += ["resize", "crop_fraction"] if options.resize is None else []
    return options._replace(**{key: getattr(more, key) for key in keys if getattr(options, key) is None})


def _tflite(facts: ModelFacts) -> ImageOptions:
    inputs = facts.asked
    if len(inputs) != 1 or len(facts.metadata.inputs) != len(facts.inputs):
        return ImageOptions()
    tensor = facts.metadata.inputs[facts.inputs.index(inputs[0])]
    norm, properties = tensor.normalization, tensor.content.properties if tensor.content is not None else None
    return ImageOptions(
        mean=norm.mean if norm is not None else None,
        std=norm.std if norm is not None else None,
        size=_size(properties.default_size) if isinstance(properties, ImageProperties) else None,
    )


def _onnx(facts: ModelFacts) -> ImageOptions:
    """Read Ultralytics' exports, and the fields of Windows ML that Azure's Custom Vision writes."""
    properties = facts.properties
    options = ImageOptions()
    if is_ultralytics(facts):
        height_width = literal(properties.get("imgsz", ""))
        options = ImageOptions(
            mean=(0.0,),
            std=(255.0,),
            resize="crop" if properties.get("task") == "classify" else "letterbox",
            fill=(114.0,),
            size=_size(height_width[::-1]) if isinstance(height_width, list) else None,
        )
    mean, std = _PIXEL_RANGES.get(properties.get("Image.NominalPixelRange", ""), (options.mean, options.std))
    colour = {"Bgr8": "bgr", "Rgb8": "rgb", "Gray8": "grayscale"}.get(properties.get("Image.BitmapPixelFormat", ""))
    return options._replace(mean=mean, std=std, color=colour)


def _hugging_face(facts: ModelFacts) -> ImageOptions:
    """Read ``preprocessor_config.json``: rescaling precedes normalisation; both become one mean and std in pixels."""
    config = facts.json_beside("preprocessor_config.json")
    if not config:
        return ImageOptions()
    factor = config.get("rescale_factor")
    if not config.get("do_rescale", True):
        factor = 1.0
    elif not (isinstance(factor, int | float) and 0 < factor < 1e6):
        factor = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if config.get("do_normalize", True) and config.get("image_mean") and config.get("image_std"):
        mean, std = (_numbers(config, key) for key in ("image_mean", "image_std"))
    resize, fraction = None, None
    size, crop = _config_size(config.get("size")), _config_size(config.get("crop_size"))
    edge = config["size"].get("shortest_edge") if isinstance(config.get("size"), dict) else None
    edge = edge if _size((edge, edge)) else None
    if config.get("do_center_crop") and crop:
        resize, fraction = "crop", min(1.0, min(crop) / (edge or min(size or crop)))
        size = crop
    elif edge is not None:  # ConvNeXT and others
        resize, fraction, size = "crop", _crop_percentage(config), (edge, edge)
    return ImageOptions(
        mean=tuple(value / factor for value in mean),
        std=tuple(value / factor for value in std),
        resample=_RESAMPLE.get(config.get("resample", -1)),
        size=size,
        resize=resize,
        crop_fraction=fraction,
    )


def _timm(facts: ModelFacts) -> ImageOptions:
    """Read ``pretrained_cfg`` in the ``config.json`` of a timm model."""
    config = facts.json_beside(CONFIG).get("pretrained_cfg")
    if not isinstance(config, dict) or not config.get("mean") or not config.get("std"):
        return ImageOptions()
    return ImageOptions(
        mean=tuple(255 * value for value in _numbers(config, "mean")),
        std=tuple(255 * value for value in _numbers(config, "std")),
        resample=config["interpolation"] if config.get("interpolation") in _RESAMPLE.values() else None,
        resize="crop",
        crop_fraction=_crop_percentage(config),
    )


def is_ultralytics(facts: ModelFacts) -> bool:
    """Return whether the file is an export of Ultralytics' YOLO, by the metadata that it writes into ONNX files."""
    return {"names", "task", "stride"} <= set(facts.properties)


def _crop_percentage(config: Mapping[str, Any]) -> float:
    fraction = config.get("crop_pct")
    return fraction if isinstance(fraction, float) and 0 < fraction <= 1 else 1.0


def _numbers(config: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = config[key] if isinstance(config[key], list) else [config[key]]
    if not all(isinstance(value, int | float) and abs(value) < 1e6 for value in values) or (
        key.endswith("std") and 0 in values
    ):
        raise ModelLoadError(f"{key} beside the model holds no usable numbers")
    return tuple(float(value) for value in values)


def _config_size(value: Any) -> tuple[int, int] | None:
    """Return the (width, height) of ``{"height", "width"}``, ``[height, width]`` or one number."""
    if isinstance(value, dict):
        value = [value.get("height"), value.get("width")]
    if isinstance(value, int):
        value = [value, value]
    return _size(value[::-1]) if isinstance(value, list) else None


def _size(sides: Any) -> tuple[int, int] | None:
    """Return (width, height) if both are usable."""
    if sides is None or len(sides) != 2 or not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
        return None
    return sides[0], sides[1]
