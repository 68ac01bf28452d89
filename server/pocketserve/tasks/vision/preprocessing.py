"""Read a picture model's preprocessing from its files.

These are TFLite metadata, ONNX metadata and Hugging Face's JSON files. The manifest's
``[image]`` comes first, key by key; then these in the order below; then the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from pocketserve.messages import plural
from pocketserve.repository.toml_table import Section, TomlTable, declared_values
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.model_facts import (
    CONFIG,
    PREPROCESSOR,
    PROCESSOR,
    ModelFacts,
    literal,
)
from pocketserve.tasks.vision.geometry import Sizing, round_up

MAX_SIDE = 1 << 14
MAX_NUMBER = 1e6  # of a file's factor, mean or std
MIN_FACTOR = 1e-9
MULTIPLE_ABOVE = "size_multiple_above"
"""MaskFormer's ``size_divisor``, as ``complete_processor`` calls it."""

RESAMPLE = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}
"""Pillow's numbers, which Hugging Face writes into its files."""

CONVNEXT_STRETCHES = 384
"""The shorter side from which on ConvNeXT's processor stretches. Source: image_processing_convnext.py."""

_PIXEL_RANGES = {
    "NominalRange_0_255": ((0.0,), (1.0,)),
    "Normalized_0_1": ((0.0,), (255.0,)),
    "Normalized_1_1": ((127.5,), (127.5,)),
}


class ImageOptions(NamedTuple):
    """The conversion of a picture to the input tensor.

    It is (pixel - mean) / std, with pixels from 0 to 255. None leaves a key to the model's files. ``size`` is (width,
    height), for inputs whose shape leaves them open. ``sizing`` comes from a library's
    files and replaces ``resize`` if its result fits the input.
    """

    color: Annotated[str | None, TomlTable.choice, ("rgb", "bgr", "grayscale")] = None
    resize: Annotated[
        str | None, TomlTable.choice, ("stretch", "crop", "letterbox")
    ] = None
    mean: Annotated[tuple[float, ...] | None, TomlTable.numbers] = None
    std: Annotated[
        tuple[float, ...] | None, partial(TomlTable.numbers, nonzero=True)
    ] = None
    invert: Annotated[str, TomlTable.choice, ("never", "always", "auto")] = "never"
    resample: Annotated[str | None, TomlTable.choice, tuple(RESAMPLE.values())] = None
    crop_fraction: Annotated[float | None, TomlTable.number, 0.01, 1.0] = None
    fill: Annotated[tuple[float, ...] | None, TomlTable.numbers] = None
    size: tuple[int, int] | None = None
    sizing: Sizing | None = None


def _image(table: TomlTable) -> ImageOptions:
    width, height = (table.integer(key, 1, 1 << 14) for key in ("width", "height"))
    if (width is None) != (height is None):
        raise table.fault(
            "width" if width is None else "height", "is missing; give both"
        )
    size = None if width is None or height is None else (width, height)
    return ImageOptions(**declared_values(ImageOptions, table), size=size)


IMAGE = Section("image", ImageOptions, _image)


def image_options(facts: ModelFacts) -> ImageOptions:
    """Return the manifest's options, completed by the model's files."""
    options = facts.manifest.section(ImageOptions)
    sources = [_onnx, _hugging_face, _timm, _export_tool]
    if facts.metadata.is_from_operators:
        sources.append(_tflite)
    else:
        sources.insert(0, _tflite)
    for source in sources:
        options = complete(options, source(facts))
    return options


def complete(options: ImageOptions, more: ImageOptions) -> ImageOptions:
    """Fill in missing keys from other options.

    ``crop_fraction`` and ``sizing`` are taken only together with ``resize``.
    """
    keys = ["color", "resample", "fill", "size", "mean", "std"]
    if options.resize is None:
        keys += ["resize", "crop_fraction"]
        if options.size in (None, more.size):
            keys.append("sizing")
    missing = {}
    for key in keys:
        if getattr(options, key) is None:
            missing[key] = getattr(more, key)
    return options._replace(**missing)


def _tflite(facts: ModelFacts) -> ImageOptions:
    inputs = facts.sent_inputs
    if len(inputs) != 1 or len(facts.metadata.inputs) != len(facts.inputs):
        return ImageOptions()
    tensor = facts.metadata.inputs[facts.inputs.index(inputs[0])]
    from pocketserve.runtimes.metadata_parts import ImageProperties  # late, see there

    options = ImageOptions()
    if tensor.normalization is not None:
        norm = tensor.normalization
        options = options._replace(mean=norm.mean, std=norm.std)
    properties = None
    if tensor.content is not None:
        properties = tensor.content.properties
    if isinstance(properties, ImageProperties):
        options = options._replace(size=_size(properties.default_size))
    return options


_PIXEL_FORMATS = {"Bgr8": "bgr", "Rgb8": "rgb", "Gray8": "grayscale"}


def _onnx(facts: ModelFacts) -> ImageOptions:
    """Read the metadata of Ultralytics' exports and Azure's Custom Vision.

    The latter writes the fields of Windows ML.
    """
    properties = facts.properties
    options = ImageOptions()
    if is_ultralytics(facts):
        resize = "letterbox"
        if properties.get("task") == "classify":
            resize = "crop"
        # The model's predictor fills the input without bars.
        if properties.get("head") == "RTDETRDecoder":
            resize = "stretch"
        options = ImageOptions(
            mean=(0.0,),
            std=(255.0,),
            resize=resize,
            fill=(114.0,),
            size=_image_size(properties),
        )
    elif is_yolov5(facts):
        options = _yolov5(facts)
    pixel_range = properties.get("Image.NominalPixelRange", "")
    mean, std = _PIXEL_RANGES.get(pixel_range, (options.mean, options.std))
    colour = _PIXEL_FORMATS.get(properties.get("Image.BitmapPixelFormat", ""))
    return options._replace(mean=mean, std=std, color=colour)


def _image_size(properties: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the (width, height) of Ultralytics' ``imgsz``.

    It is a list of height and width, or a number.
    """
    sides = literal(properties.get("imgsz", ""))
    if isinstance(sides, int):
        sides = [sides, sides]
    if isinstance(sides, list | tuple):
        return _size(tuple(sides)[::-1])
    return None


def _yolov5(facts: ModelFacts) -> ImageOptions:
    """Return the options of a YOLOv5 detector or classifier.

    Source: ultralytics/yolov5, utils/augmentations.py (``letterbox``,
    ``classify_transforms``).
    """
    is_classifier = all(len(spec.shape) <= 2 for spec in facts.outputs)
    if not is_classifier:
        return ImageOptions(
            mean=(0.0,), std=(255.0,), resize="letterbox", fill=(114.0,)
        )
    from pocketserve.tasks.foreign.timm_config import IMAGENET_MEAN, IMAGENET_STD

    return ImageOptions(
        mean=tuple(value * 255 for value in IMAGENET_MEAN),
        std=tuple(value * 255 for value in IMAGENET_STD),
        resize="crop",
    )


def _hugging_face(facts: ModelFacts) -> ImageOptions:
    """Read the image processor's settings, completed by its class's defaults."""
    file = _processor_settings(facts)
    if not file:
        return ImageOptions()
    from pocketserve.tasks.foreign.image_processors import (  # late: few have the file
        complete_processor,
        processor_class,
    )

    model_type = facts.json_beside(CONFIG).get("model_type")
    name = processor_class(file, model_type)
    config = complete_processor(file, model_type)
    mean, std = _normalization(config)
    options = _sized(name, config)
    return options._replace(
        color="bgr" if config.get("do_flip_channel_order") else None,
        mean=mean,
        std=std,
        resample=_resample(config.get("resample")),
    )


def _processor_settings(facts: ModelFacts) -> dict[str, Any]:
    if facts.beside(PREPROCESSOR) is None and facts.beside(PROCESSOR) is None:
        return {}
    from pocketserve.tasks.foreign.processor_file import (
        processor_settings,  # late: few models have the files
    )

    return processor_settings(facts, "picture")


def _resample(value: object) -> str | None:
    """Return the filter of Pillow's number or of a text such as ``PIL.Image.BOX``."""
    if isinstance(value, str):
        name = value.rpartition(".")[2].lower()
        if name in RESAMPLE.values():
            return name
        return None
    if isinstance(value, int):
        return RESAMPLE.get(value)
    return None


def note_unknown_processor(facts: ModelFacts) -> None:
    """Note a processor class with unknown defaults."""
    file = _processor_settings(facts)
    if not file:
        return
    # late: few models have the file
    from pocketserve.tasks.foreign.image_processors import (
        DEFAULTS,
        processor_class,
    )

    name = processor_class(file)
    if name and name not in DEFAULTS:
        facts.assumed.append(
            f"{name[:60]} is unknown: only the keys of its file are applied"
        )


def _normalization(
    config: Mapping[str, Any],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return a processor's mean and std in pixels.

    It rescales pixels, then normalizes them.
    """
    scale = 1.0
    if config.get("do_rescale", True):
        scale = 1 / _rescale_factor(config)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    has_numbers = (
        config.get("image_mean") is not None and config.get("image_std") is not None
    )
    if config.get("do_normalize", True) and has_numbers:
        mean = _numbers(config, "image_mean")
        std = _numbers(config, "image_std")
    if config.get("rescale_offset"):  # pixels from -1 to 1 are normalized
        mean = tuple(value + 1 for value in mean)
    if config.get("include_top") and config.get("image_std"):
        # EfficientNet divides by std once more.
        pairs = _pairs(std, _numbers(config, "image_std"))
        std = tuple(value * again for value, again in pairs)
    return _scaled(mean, scale), _scaled(std, scale)


def _scaled(values: tuple[float, ...], scale: float) -> tuple[float, ...]:
    return tuple(value * scale for value in values)


def _rescale_factor(config: Mapping[str, Any]) -> float:
    """Return the factor of pixels.

    Raises:
        ModelLoadError: the file's factor is not a number above 0.
    """
    factor = config.get("rescale_factor")
    if factor is None:
        return 1 / 255
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not is_number or not MIN_FACTOR < factor < MAX_NUMBER:
        raise ModelLoadError(
            f"rescale_factor beside the model is {str(factor)!r:.80}, not a number "
            "above 0; correct it, or set image.mean and image.std in model.toml"
        )
    return float(factor)


def _pairs(
    first: tuple[float, ...], second: tuple[float, ...]
) -> list[tuple[float, float]]:
    """Pair the numbers of two settings.

    A single one counts for each channel.
    """
    if len(first) == 1:
        first = first * len(second)
    if len(second) == 1:
        second = second * len(first)
    return list(zip(first, second, strict=False))


def _sized(name: str, config: Mapping[str, Any]) -> ImageOptions:
    """Return a processor's resizing, cropping and padding.

    ``sizing`` is exact; ``resize``, ``crop_fraction`` and ``size`` are for inputs of
    other sizes than its result.
    """
    size: Any = config.get("size")
    if not isinstance(size, dict):
        size = {}
    exact = _exact_size(config, size)
    shortest = _side(size.get("shortest_edge"))
    longest = _side(size.get("longest_edge"))
    if name == "LevitImageProcessor":
        shortest = int(256 / 224 * shortest)
    if name == "PoolFormerImageProcessor":
        exact, shortest = _enlarged(exact, shortest, _crop_percentage(config))
    within = _size((size.get("max_width"), size.get("max_height")))
    if config.get("do_center_crop"):
        crop = _config_size(config.get("crop_size"))
        if crop is not None:
            return _cropped(name, config, exact, (shortest, longest), within, crop)
    pad = _config_size(config.get("pad_size"))
    if shortest and longest:
        return _between(name, config, shortest, longest)
    if longest:
        within = (longest, longest)
    if within is not None:
        return _within(config, within)
    if shortest:
        return _shortest_only(name, config, shortest, pad)
    if exact is None:
        return ImageOptions()
    if pad is not None and (pad[0] < exact[0] or pad[1] < exact[1]):
        pad = None  # the libraries refuse it
    return ImageOptions(size=pad or exact, sizing=Sizing(exact, pad=pad))


def _between(
    name: str, config: Mapping[str, Any], shortest: int, longest: int
) -> ImageOptions:
    """Return the options of a processor that limits both edges."""
    pad = _config_size(config.get("pad_size"))
    sizing = Sizing(
        shortest=shortest,
        longest=longest,
        multiple=16 if name == "YolosImageProcessor" else 1,
        multiple_above=_side(config.get(MULTIPLE_ABOVE)) or 1,
        pad=pad,
    )
    size = pad or (shortest, shortest)
    return ImageOptions(size=size, resize="stretch", sizing=sizing)


def _within(config: Mapping[str, Any], limits: tuple[int, int]) -> ImageOptions:
    """Return the options of a processor that fits pictures into a box."""
    pad = _config_size(config.get("pad_size"))
    above = _side(config.get(MULTIPLE_ABOVE)) or 1
    sizing = Sizing(within=limits, multiple_above=above, pad=pad)
    return ImageOptions(size=pad or limits, resize="stretch", sizing=sizing)


def _cropped(
    name: str,
    config: Mapping[str, Any],
    exact: tuple[int, int] | None,
    edges: tuple[int, int],
    within: tuple[int, int] | None,
    crop: tuple[int, int],
) -> ImageOptions:
    """Return the options of a processor that crops the middle.

    Args:
        edges: the lengths of the shorter and the longer side; 0 if they aren't set.
    """
    shortest, longest = edges
    above = _side(config.get(MULTIPLE_ABOVE)) or 1
    if name == "PerceiverImageProcessor" and exact is not None:
        cut = (exact[0] / crop[0], exact[1] / crop[1])
        return ImageOptions(
            size=exact,
            resize="crop",
            crop_fraction=min(1.0, *cut),
            sizing=Sizing(exact, cut=cut),
        )
    edge = shortest or min(exact or crop)
    return ImageOptions(
        size=crop,
        resize="crop",
        crop_fraction=min(1.0, min(crop) / edge),
        sizing=Sizing(
            exact, shortest, longest, within, multiple_above=above, crop=crop
        ),
    )


def _exact_size(
    config: Mapping[str, Any], size: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Return the size to stretch to.

    DPT rounds it to a multiple.
    """
    exact = _config_size(dict(size))
    above = _side(config.get(MULTIPLE_ABOVE))
    if exact is not None and above:
        return round_up(exact, above)
    multiple = config.get("ensure_multiple_of")
    if exact is None or type(multiple) is not int or multiple <= 1:
        return exact
    return _size(tuple(round(side / multiple) * multiple for side in exact))


def _enlarged(
    exact: tuple[int, int] | None, shortest: int, fraction: float
) -> tuple[tuple[int, int] | None, int]:
    """Return PoolFormer's size and shorter side before the crop."""
    if exact is None:
        return None, int(shortest / fraction)
    width = int(exact[0] / fraction)
    height = int(exact[1] / fraction)
    if width == height:
        return (None, height)
    return ((width, height), 0)


def _shortest_only(
    name: str,
    config: Mapping[str, Any],
    shortest: int,
    pad: tuple[int, int] | None,
) -> ImageOptions:
    """Read a size of the shorter side alone.

    ConvNeXT crops by ``crop_pct``, or stretches large pictures.
    """
    square = (shortest, shortest)
    if name not in ("ConvNextImageProcessor", ""):
        above = _side(config.get(MULTIPLE_ABOVE)) or 1
        sizing = Sizing(shortest=shortest, multiple_above=above, pad=pad)
        return ImageOptions(size=pad or square, resize="crop", sizing=sizing)
    if name and shortest >= CONVNEXT_STRETCHES:
        return ImageOptions(size=square, sizing=Sizing(square))
    fraction = _crop_percentage(config)
    sizing = Sizing(shortest=int(shortest / fraction), crop=square)
    return ImageOptions(
        size=square, resize="crop", crop_fraction=fraction, sizing=sizing
    )


def _timm(facts: ModelFacts) -> ImageOptions:
    """Read a timm model's ``config.json``.

    Source: huggingface/pytorch-image-models, timm/data/transforms_factory.py,
    ``transforms_imagenet_eval``.
    """
    file = facts.json_beside(CONFIG)
    if not file:
        return ImageOptions()
    from pocketserve.tasks.foreign.timm_config import (
        timm_settings,  # late: few have the file
    )

    config = timm_settings(file)
    if not config:
        return ImageOptions()
    options = ImageOptions(
        mean=_scaled(_numbers(config, "mean"), 255),
        std=_scaled(_numbers(config, "std"), 255),
        resample=_timm_resampling(config.get("interpolation")),
        resize="crop",
        crop_fraction=_crop_percentage(config),
    )
    shape = config.get("input_size")
    size = None
    if isinstance(shape, list) and len(shape) == 3:
        size = _size((shape[2], shape[1]))
    if size is None:
        return options
    return _timm_sized(options, config.get("crop_mode"), size)


def _timm_resampling(interpolation: Any) -> str | None:
    if interpolation == "random":
        return "bilinear"
    if interpolation in RESAMPLE.values():
        name: str = interpolation
        return name
    return None


def _timm_sized(
    options: ImageOptions, mode: object, size: tuple[int, int]
) -> ImageOptions:
    fraction = options.crop_fraction or 1.0
    scaled = (math.floor(size[0] / fraction), math.floor(size[1] / fraction))
    if mode == "squash":
        return options._replace(
            size=size, sizing=Sizing(scaled, crop=size, rounds=True)
        )
    if mode == "border":
        fill = tuple(float(round(value)) for value in options.mean or ())
        return options._replace(
            size=size, fill=fill, resize="letterbox", crop_fraction=None
        )
    if size[0] != size[1]:
        return options._replace(size=size)
    return options._replace(
        size=size, sizing=Sizing(shortest=scaled[0], crop=size, rounds=True)
    )


def _export_tool(facts: ModelFacts) -> ImageOptions:
    """Return the options of Teachable Machine and Lobe, which write none."""
    if not facts.may_be_export:
        return ImageOptions()
    # late: few models are exports
    from pocketserve.tasks.foreign.exports.lobe import lobe_labels
    from pocketserve.tasks.foreign.exports.teachable_machine import project_of

    project = project_of(facts)
    if project is not None and project.kind == "image":
        return ImageOptions(
            mean=(project.middle,),
            std=(project.middle,),
            resize="crop",
            resample=project.resample or None,
            color="grayscale" if project.is_grey else None,
        )
    if lobe_labels(facts) is not None:
        return ImageOptions(
            mean=(0.0,), std=(255.0,), resize="crop", resample="bicubic", color="rgb"
        )
    return ImageOptions()


def is_ultralytics(facts: ModelFacts) -> bool:
    """Return whether metadata marks an export of Ultralytics' YOLO."""
    if not facts.properties:
        return False
    from pocketserve.tasks.foreign.exports.ultralytics import (
        is_ultralytics_metadata,  # late: few models have properties
    )

    return is_ultralytics_metadata(facts.properties)


def is_yolov5(facts: ModelFacts) -> bool:
    """Return whether metadata marks an export of YOLOv5."""
    if not facts.properties:
        return False
    from pocketserve.tasks.foreign.exports.ultralytics import (
        is_yolov5_metadata,  # late: few models have properties
    )

    return is_yolov5_metadata(facts.properties)


def _crop_percentage(config: Mapping[str, Any]) -> float:
    fraction = config.get("crop_pct")
    if isinstance(fraction, int | float) and 0.01 <= fraction <= 1:
        return float(fraction)
    return 1.0


def _numbers(config: Mapping[str, Any], key: str) -> tuple[float, ...]:
    value = config[key]
    values = list(value) if isinstance(value, list | tuple) else [value]
    usable = all(
        isinstance(value, int | float) and abs(value) < MAX_NUMBER for value in values
    )
    if not usable or (key.endswith("std") and 0 in values):
        raise ModelLoadError(f"{key} beside the model has no usable numbers")
    if len(values) not in (1, 3):
        raise ModelLoadError(
            f"{key} beside the model has {plural(len(values), 'number')}; it must have "
            "1, or 3 for red, green and blue"
        )
    return tuple(values)


def _config_size(value: Any) -> tuple[int, int] | None:
    """Return (width, height) of ``{"height", "width"}``, ``[height, width]`` or a number."""
    if isinstance(value, dict):
        value = [value.get("height"), value.get("width")]
    if isinstance(value, int):
        value = [value, value]
    if isinstance(value, list):
        return _size(value[::-1])
    return None


def _side(length: Any) -> int:
    """Return a length in pixels; 0 if it isn't usable."""
    if type(length) is int and 0 < length <= MAX_SIDE:
        return length
    return 0


def _size(sides: Any) -> tuple[int, int] | None:
    """Return (width, height) if both are usable."""
    if (
        sides is None
        or len(sides) != 2
        or not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides)
    ):
        return None
    return sides[0], sides[1]
