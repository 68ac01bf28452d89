"""The table ``[detection]`` of a manifest; see ``docs/pictures.md``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable, declared_values
from pocketserve.tasks.scores import ACTIVATIONS

FORMAT_NAMES = (
    *("postprocess", "ssd", "yolov5", "yolov8", "yolov10", "detr"),
    *("yolov8-seg", "yolov8-obb", "yolo-rtdetr"),
)


def _strides(table: TomlTable, key: str) -> tuple[int, ...]:
    def check(value: object) -> bool:
        return (
            isinstance(value, list)
            and 0 < len(value) <= 16
            and all(type(v) is int and 0 < v <= 4096 for v in value)
        )

    strides = table.take(key, check, "a list of whole numbers, one per layer")
    if strides is None:
        raise table.fault(key, "is missing; name the pixels per cell of each layer")
    return tuple(strides)


class AnchorOptions(NamedTuple):
    """Anchors of a single-shot detector, as its training code generates them.

    ``strides`` are in pixels, one per layer.
    """

    strides: Annotated[tuple[int, ...], _strides] = ()
    min_scale: Annotated[float, TomlTable.number, 0.001, 10] = 0.2
    max_scale: Annotated[float, TomlTable.number, 0.001, 10] = 0.95
    aspect_ratios: Annotated[tuple[float, ...], _divisors] = (
        1.0,
        2.0,
        0.5,
        3.0,
        1.0 / 3.0,
    )
    interpolated_ratio: Annotated[float, TomlTable.number, 0, 100] = 1.0
    reduce_lowest: Annotated[bool, TomlTable.flag] = True
    fixed_size: Annotated[bool, TomlTable.flag] = False


def _divisors(
    table: TomlTable, key: str, count: int | None = None
) -> tuple[float, ...] | None:
    values = table.numbers(key, nonzero=True)
    if count is not None and values is not None and len(values) != count:
        raise table.fault(key, "must have four numbers")
    return values


def _order(table: TomlTable, key: str) -> tuple[int, ...] | None:
    def check(value: object) -> bool:
        return (
            isinstance(value, list)
            and all(type(v) is int for v in value)
            and sorted(value) == [0, 1, 2, 3]
        )

    order = table.take(key, check, "the positions 0, 1, 2 and 3 in some order")
    if order:
        return tuple(order)
    return None


def _anchors(table: TomlTable, key: str) -> AnchorOptions | None:
    inner = table.optional_table(key)
    if inner is None:
        return None
    options = AnchorOptions(**declared_values(AnchorOptions, inner))
    inner.refuse_rest()
    return options


@dataclass(frozen=True, slots=True)
class DetectionOptions:
    """The layout of a detector's outputs; None leaves a key to files or defaults.

    Attributes:
        boxes: name of an output, like ``scores``, ``classes`` and ``count``.
        box_order: positions of the four numbers that ``box_type`` names.
        anchors_file: ``.npy`` or text with a row (center y, center x, height, width) per
            anchor, as ratios.
        box_scale: divisors of raw boxes: center y, center x, height, width.
    """

    format: Annotated[str | None, TomlTable.choice, FORMAT_NAMES] = None
    boxes: Annotated[str | None, TomlTable.text] = None
    scores: Annotated[str | None, TomlTable.text] = None
    classes: Annotated[str | None, TomlTable.text] = None
    count: Annotated[str | None, TomlTable.text] = None
    box_type: Annotated[
        str | None, TomlTable.choice, ("boundaries", "upper_left", "center")
    ] = None
    box_order: Annotated[tuple[int, ...] | None, _order] = None
    coordinates: Annotated[str | None, TomlTable.choice, ("ratio", "pixel")] = None
    activation: Annotated[str | None, TomlTable.choice, ACTIVATIONS] = None
    background: Annotated[bool, TomlTable.flag] = False
    label_offset: Annotated[int, TomlTable.integer, -1000, 1000] = 0
    threshold: Annotated[float | None, TomlTable.number, -1e30, 1e30] = None
    iou: Annotated[float | None, TomlTable.number, 0, 1] = None
    max: Annotated[int, TomlTable.integer, 1, 10_000] = 100
    anchors_file: Annotated[str | None, TomlTable.relative_path] = None
    anchors: Annotated[AnchorOptions | None, _anchors] = None
    box_scale: Annotated[tuple[float, ...], _divisors, 4] = (10.0, 10.0, 5.0, 5.0)
    exponential: Annotated[bool, TomlTable.flag] = True


DETECTION = Section(
    "detection", DetectionOptions, files=lambda options: (options.anchors_file,)
)
