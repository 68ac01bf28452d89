"""The table ``[detection]`` of a manifest; see ``docs/tasks.md``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable, with_defaults
from pocketserve.tasks.classification_options import ACTIVATIONS


class AnchorOptions(NamedTuple):
    """Anchors of a single-shot detector, as its training code generates them; ``strides`` in pixels, one a layer."""

    strides: tuple[int, ...] = ()
    min_scale: float = 0.2
    max_scale: float = 0.95
    aspect_ratios: tuple[float, ...] = (1.0, 2.0, 0.5, 3.0, 1.0 / 3.0)
    interpolated_ratio: float = 1.0
    reduce_lowest: bool = True
    fixed_size: bool = False


@dataclass(frozen=True, slots=True)
class DetectionOptions:
    """The layout of a detector's outputs; None leaves a key to the model's files, its outputs or the task.

    Attributes:
        boxes, scores, classes, count: names of outputs.
        box_order: positions of the four numbers that ``box_type`` names.
        anchors_file: ``.npy`` or text with a row (center y, center x, height, width) per anchor, as ratios.
        box_scale: divisors of raw boxes: center y, center x, height, width.
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
    background: bool = False
    label_offset: int = 0
    threshold: float | None = None
    iou: float | None = None
    max: int = 100
    anchors_file: str | None = None
    anchors: AnchorOptions | None = None
    box_scale: tuple[float, ...] = (10.0, 10.0, 5.0, 5.0)
    exponential: bool = True


def _detection(table: TomlTable) -> DetectionOptions:
    anchors = table.optional_table("anchors")
    order = table.take("box_order", _is_order, "the positions 0, 1, 2 and 3 in some order")
    scale = table.numbers("box_scale", nonzero=True)
    if scale is not None and len(scale) != 4:
        raise table.fault("box_scale", "must have four numbers")
    return with_defaults(
        DetectionOptions,
        format=table.choice("format", ("postprocess", "ssd", "yolov5", "yolov8", "yolov10", "detr")),
        **{key: table.text(key) for key in ("boxes", "scores", "classes", "count")},
        box_type=table.choice("box_type", ("boundaries", "upper_left", "center")),
        box_order=tuple(order) if order else None,
        coordinates=table.choice("coordinates", ("ratio", "pixel")),
        activation=table.choice("activation", ACTIVATIONS),
        background=table.flag("background"),
        label_offset=table.integer("label_offset", -1000, 1000),
        threshold=table.number("threshold", -1e30, 1e30),
        iou=table.number("iou", 0, 1),
        max=table.integer("max", 1, 10_000),
        anchors_file=table.relative_path("anchors_file"),
        anchors=_anchors(anchors) if anchors else None,
        box_scale=scale,
        exponential=table.flag("exponential"),
    )


def _is_order(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int for v in value) and sorted(value) == [0, 1, 2, 3]


def _anchors(table: TomlTable) -> AnchorOptions:
    strides = table.take("strides", _are_strides, "a list of whole numbers, one per layer")
    if strides is None:
        raise table.fault("strides", "is missing; name the pixels per cell of each layer")
    options = with_defaults(
        AnchorOptions,
        strides=tuple(strides),
        min_scale=table.number("min_scale", 0.001, 10),
        max_scale=table.number("max_scale", 0.001, 10),
        aspect_ratios=table.numbers("aspect_ratios", nonzero=True),
        interpolated_ratio=table.number("interpolated_ratio", 0, 100),
        reduce_lowest=table.flag("reduce_lowest"),
        fixed_size=table.flag("fixed_size"),
    )
    table.refuse_rest()
    return options


def _are_strides(value: object) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 16 and all(type(v) is int and 0 < v <= 4096 for v in value)


DETECTION = Section("detection", DetectionOptions, _detection, lambda options: (options.anchors_file,))
