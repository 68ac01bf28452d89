"""What a manifest may say of the tasks on pictures."""

from __future__ import annotations

from pocketserve.repository.toml_table import Section, TomlTable
from pocketserve.tasks.classification_options import ACTIVATIONS
from pocketserve_wire.records import dataclass


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How a picture becomes the input tensor: (pixel - mean) / std with pixels from 0 to 255.

    Attributes:
        color: ``rgb``, ``bgr`` or ``grayscale``; None takes what the input's channels say.
        resize: ``stretch``, ``crop`` or ``letterbox``; None leaves it to the file, else ``stretch``.
        mean, std: one number, or one per channel.
        invert: ``never``, ``always`` or ``auto``.
        resample: ``nearest``, ``bilinear``, ``bicubic`` or ``lanczos``; None leaves it to the file, else bilinear.
        crop_fraction: with ``crop``: the share of the shorter side that is kept.
        fill: with ``letterbox``: the grey or colour of the bars, 0 to 255.
        size: (width, height) for inputs whose shape leaves them open.
    """

    color: str | None = None
    resize: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    invert: str = "never"
    resample: str | None = None
    crop_fraction: float | None = None
    fill: tuple[float, ...] | None = None
    size: tuple[int, int] | None = None


def _image(table: TomlTable) -> ImageOptions:
    width, height = table.integer("width", 1, 1 << 14), table.integer("height", 1, 1 << 14)
    if (width is None) != (height is None):
        raise table.fault("width" if width is None else "height", "is missing; give both")
    return ImageOptions(
        color=table.choice("color", ("rgb", "bgr", "grayscale")),
        resize=table.choice("resize", ("stretch", "crop", "letterbox")),
        mean=table.numbers("mean"),
        std=table.numbers("std", nonzero=True),
        invert=table.choice("invert", ("never", "always", "auto")) or "never",
        resample=table.choice("resample", ("nearest", "bilinear", "bicubic", "lanczos")),
        crop_fraction=table.number("crop_fraction", 0.01, 1.0),
        fill=table.numbers("fill"),
        size=None if width is None or height is None else (width, height),
    )


DETECTION_FORMATS = ("postprocess", "ssd", "yolov5", "yolov8", "yolov10", "detr")


@dataclass(frozen=True, slots=True)
class AnchorOptions:
    """Anchors of a single-shot detector, as its training code generates them: see ``docs/tasks.md``."""

    strides: tuple[int, ...] = ()
    min_scale: float = 0.2
    max_scale: float = 0.95
    aspect_ratios: tuple[float, ...] = (1.0, 2.0, 0.5, 3.0, 1.0 / 3.0)
    interpolated_ratio: float = 1.0
    reduce_lowest: bool = True
    fixed_size: bool = False


@dataclass(frozen=True, slots=True)
class DetectionOptions:
    """How a detector's outputs are read.

    Attributes:
        format: the layout, one of DETECTION_FORMATS; None tells it from the outputs where that is certain.
        boxes, scores, classes, count: names of outputs; None tells them from names, metadata and order.
        box_type: ``boundaries`` (left, top, right, bottom), ``upper_left`` (left, top, width, height) or ``center``.
        box_order: positions of these four numbers.
        coordinates: ``ratio`` or ``pixel`` of the model's input; None tells it from the numbers.
        activation: of raw scores.
        background: raw scores have a class 0 that is no object.
        label_offset: added to a class's number to find its label.
        threshold, iou, max: lowest score, overlap of boxes, entries at most; None leaves them to the task.
        anchors_file: ``.npy`` or text with a row (center y, center x, height, width) per anchor, as ratios.
        anchors: the generator instead of a file; None where there is neither.
        box_scale: divisors of raw boxes: center y, center x, height, width.
        exponential: raw heights and widths are logarithms.
    """

    format: str | None = None
    boxes: str | None = None
    scores: str | None = None
    classes: str | None = None
    count: str | None = None
    box_type: str | None = None
    box_order: tuple[int, ...] | None = None
    coordinates: str | None = None
    activation: str | None = None
    background: bool | None = None
    label_offset: int = 0
    threshold: float | None = None
    iou: float | None = None
    max: int | None = None
    anchors_file: str | None = None
    anchors: AnchorOptions | None = None
    box_scale: tuple[float, ...] = (10.0, 10.0, 5.0, 5.0)
    exponential: bool = True


def _detection(table: TomlTable) -> DetectionOptions:
    anchors = table.optional_table("anchors")
    order = table.take("box_order", _is_order, _ORDER)
    scale = table.numbers("box_scale", nonzero=True)
    if scale is not None and len(scale) != 4:
        raise table.fault("box_scale", "must have four numbers")
    return DetectionOptions(
        format=table.choice("format", DETECTION_FORMATS),
        **{key: table.text(key) or None for key in ("boxes", "scores", "classes", "count")},
        box_type=table.choice("box_type", ("boundaries", "upper_left", "center")),
        box_order=None if order is None else tuple(order),
        coordinates=table.choice("coordinates", ("ratio", "pixel")),
        activation=table.choice("activation", ACTIVATIONS),
        background=table.flag("background"),
        label_offset=table.integer("label_offset", -1000, 1000) or 0,
        threshold=table.number("threshold", -1e30, 1e30),
        iou=table.number("iou", 0, 1),
        max=table.integer("max", 1, 10_000),
        anchors_file=table.relative_path("anchors_file"),
        anchors=None if anchors is None else _anchors(anchors),
        box_scale=scale or (10.0, 10.0, 5.0, 5.0),
        exponential=table.flag("exponential") is not False,
    )


def _is_order(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int for v in value) and sorted(value) == [0, 1, 2, 3]


_ORDER = "the positions 0, 1, 2 and 3 in some order"


def _anchors(table: TomlTable) -> AnchorOptions:
    default = AnchorOptions()
    strides = table.take("strides", _are_strides, "a list of whole numbers, one per layer")
    if strides is None:
        raise table.fault("strides", "is missing; name the pixels per cell of each layer")
    ratio = table.number("interpolated_ratio", 0, 100)
    reduce_lowest = table.flag("reduce_lowest")
    found = AnchorOptions(
        strides=tuple(strides),
        min_scale=table.number("min_scale", 0.001, 10) or default.min_scale,
        max_scale=table.number("max_scale", 0.001, 10) or default.max_scale,
        aspect_ratios=table.numbers("aspect_ratios", nonzero=True) or default.aspect_ratios,
        interpolated_ratio=default.interpolated_ratio if ratio is None else ratio,
        reduce_lowest=default.reduce_lowest if reduce_lowest is None else reduce_lowest,
        fixed_size=bool(table.flag("fixed_size")),
    )
    table.refuse_rest()
    return found


def _are_strides(value: object) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 16 and all(type(v) is int and 0 < v <= 4096 for v in value)


@dataclass(frozen=True, slots=True)
class SegmentationOptions:
    """How a map of classes is read.

    Attributes:
        output: its name; None takes the only one that fits.
        threshold: of a map with one channel: above it is class 1.
        activation: of a map with one channel.
        label_offset: added to a class's number to find its label.
    """

    output: str | None = None
    threshold: float = 0.5
    activation: str = "none"
    label_offset: int = 0


def _segmentation(table: TomlTable) -> SegmentationOptions:
    threshold = table.number("threshold", -1e30, 1e30)
    return SegmentationOptions(
        output=table.text("output") or None,
        threshold=0.5 if threshold is None else threshold,
        activation=table.choice("activation", ("none", "sigmoid")) or "none",
        label_offset=table.integer("label_offset", -1000, 1000) or 0,
    )


POSE_FORMATS = ("movenet", "movenet-multipose", "posenet")


@dataclass(frozen=True, slots=True)
class PoseOptions:
    """How the points of a body are read.

    Attributes:
        format: the layout; None tells it from the outputs.
        keypoints: names of the points; empty takes ``labels``, else the 17 of COCO where there are 17.
        skeleton: pairs of points that are joined in a drawing.
        heatmaps, offsets: names of PoseNet's outputs; None tells them from their channels.
        threshold: lowest score of a person, and of a point in a drawing.
    """

    format: str | None = None
    keypoints: tuple[str, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    heatmaps: str | None = None
    offsets: str | None = None
    threshold: float | None = None


def _pose(table: TomlTable) -> PoseOptions:
    pairs = table.take("skeleton", _are_pairs, "a list of pairs of keypoint numbers") or []
    return PoseOptions(
        format=table.choice("format", POSE_FORMATS),
        keypoints=table.texts("keypoints"),
        skeleton=tuple((first, second) for first, second in pairs),
        heatmaps=table.text("heatmaps") or None,
        offsets=table.text("offsets") or None,
        threshold=table.number("threshold", -1e30, 1e30),
    )


def _are_pairs(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(end) is int and 0 <= end < 1000 for end in pair)
        for pair in value
    )


IMAGE = Section("image", ImageOptions, _image)
DETECTION = Section("detection", DetectionOptions, _detection, lambda options: (options.anchors_file,))
SEGMENTATION = Section("segmentation", SegmentationOptions, _segmentation)
POSE = Section("pose", PoseOptions, _pose)
