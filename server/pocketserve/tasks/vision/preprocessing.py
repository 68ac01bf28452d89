"""Preprocessing as a picture model's files tell it: TFLite metadata, ONNX metadata, Hugging Face's JSON files.

The manifest's ``[image]`` comes first, key by key; then these in the order below; then the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable, declared_values
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import ImageProperties
from pocketserve.tasks.model_facts import CONFIG, ModelFacts, literal

MAX_SIDE = 1 << 14

_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which Hugging Face writes into its files."""

_PIXEL_RANGES = {
    "NominalRange_0_255": ((0.0,), (1.0,)),
    "Normalized_0_1": ((0.0,), (255.0,)),
    "Normalized_1_1": ((127.5,), (127.5,)),
}


class ImageOptions(NamedTuple):
    """The way from a picture to the input tensor: (pixel - mean) / std with pixels from 0 to 255.

    None leaves a key to the model's files; ``size`` is (width, height), for inputs whose shape leaves them open.
    """

    color: Annotated[str | None, TomlTable.choice, ("rgb", "bgr", "grayscale")] = None
    resize: Annotated[str | None, TomlTable.choice, ("stretch", "crop", "letterbox")] = None
    mean: Annotated[tuple[float, ...] | None, TomlTable.numbers] = None
    std: Annotated[tuple[float, ...] | None, partial(TomlTable.numbers, nonzero=True)] = None
    invert: Annotated[str, TomlTable.choice, ("never", "always", "auto")] = "never"
    resample: Annotated[str | None, TomlTable.choice, ("nearest", "bilinear", "bicubic", "lanczos")] = None
    crop_fraction: Annotated[float | None, TomlTable.number, 0.01, 1.0] = None
    fill: Annotated[tuple[float, ...] | None, TomlTable.numbers] = None
    size: tuple[int, int] | None = None


def _image(table: TomlTable) -> ImageOptions:
    width, height = (table.integer(key, 1, 1 << 14) for key in ("width", "height"))
    if (width is None) != (height is None):
        raise table.fault("width" if width is None else "height", "is missing; give both")
    size = None if width is None or height is None else (width, height)
    return ImageOptions(**declared_values(ImageOptions, table), size=size)


IMAGE = Section("image", ImageOptions, _image)


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
    inputs = facts.sent_inputs
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
    rescale, factor = config.get("do_rescale", True), config.get("rescale_factor")
    factor = factor if isinstance(factor, int | float) and 0 < factor < 1e6 else 1 / 255
    scale = 1 / factor if rescale else 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (scale,)
    if config.get("do_normalize", True) and config.get("image_mean") and config.get("image_std"):
        mean, std = (_numbers(config, key, scale) for key in ("image_mean", "image_std"))
    size, crop = _config_size(config.get("size")), _config_size(config.get("crop_size"))
    edge: Any = config["size"].get("shortest_edge") if isinstance(config.get("size"), dict) else None
    options = ImageOptions(mean=mean, std=std, resample=_RESAMPLE.get(config.get("resample", -1)), size=size)
    if config.get("do_center_crop") and crop:
        edge = edge if _size((edge, edge)) else min(size or crop)
        return options._replace(resize="crop", crop_fraction=min(1.0, min(crop) / edge), size=crop)
    if _size((edge, edge)):  # ConvNeXT and others
        return options._replace(resize="crop", crop_fraction=_crop_percentage(config), size=(edge, edge))
    return options


def _timm(facts: ModelFacts) -> ImageOptions:
    """Read ``pretrained_cfg`` in the ``config.json`` of a timm model."""
    config = facts.json_beside(CONFIG).get("pretrained_cfg")
    if not isinstance(config, dict) or not config.get("mean") or not config.get("std"):
        return ImageOptions()
    return ImageOptions(
        mean=_numbers(config, "mean", 255),
        std=_numbers(config, "std", 255),
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


def _numbers(config: Mapping[str, Any], key: str, scale: float) -> tuple[float, ...]:
    values = config[key] if isinstance(config[key], list) else [config[key]]
    usable = all(isinstance(value, int | float) and abs(value) < 1e6 for value in values)
    if not usable or (key.endswith("std") and 0 in values):
        raise ModelLoadError(f"{key} beside the model holds no usable numbers")
    return tuple(value * scale for value in values)


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
