"""Boxes: anchors, layouts and suppression. All of it in NumPy, boxes as [n, (left, top, right, bottom)] in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from pocketserve.tasks.vision.options import AnchorOptions
from pocketserve.tensors import Array

MAX_CANDIDATES = 1000
"""Boxes that suppression looks at: it compares each with each."""


def to_corners(boxes: Array, kind: str, order: tuple[int, ...] | None = None) -> Array:
    """Boxes of any layout as corners.

    Args:
        boxes: [n, 4] or more columns, of which the first four count.
        kind: ``boundaries`` (left, top, right, bottom), ``upper_left`` (left, top, width, height) or ``center``
            (center x, center y, width, height).
        order: where in a row these four numbers stand; None is in that order.
    """
    rows = boxes[:, list(order or (0, 1, 2, 3))].astype(np.float64)
    if kind == "boundaries":
        return rows
    first, size = rows[:, :2], rows[:, 2:]
    start = first - size / 2 if kind == "center" else first
    corners: Array = np.concatenate([start, start + size], axis=1)
    return corners


def decode_anchors(raw: Array, anchors: Array, scale: tuple[float, ...], exponential: bool) -> Array:
    """Offsets from anchors to corners, as ratios.

    Args:
        raw: [n, (y, x, height, width)] offsets.
        anchors: [n, (center y, center x, height, width)].
        scale: divisors of the four offsets.
        exponential: heights and widths are logarithms of factors.
    """
    moved = raw[:, :4].astype(np.float64) / np.asarray(scale)
    center = moved[:, :2] * anchors[:, 2:] + anchors[:, :2]
    with np.errstate(over="ignore"):
        size = (np.exp(moved[:, 2:]) if exponential else moved[:, 2:]) * anchors[:, 2:]
    rows = np.concatenate([center, size], axis=1)
    return to_corners(rows, "center", (1, 0, 3, 2))


def generate_anchors(options: AnchorOptions, width: int, height: int) -> Array:
    """The anchors of an SSD, [n, (center y, center x, height, width)] as ratios of the input.

    One layer of cells per stride; each cell has one anchor per aspect ratio at the layer's scale, and one more at the
    geometric mean of that scale and the next. With ``reduce_lowest`` the first layer has three only.
    """
    layers = len(options.strides)
    steps = np.linspace(options.min_scale, options.max_scale, layers) if layers > 1 else [options.min_scale]
    scales = [*map(float, steps), 1.0]
    return np.concatenate(
        [_layer(stride, _sizes(options, index, scales), width, height) for index, stride in enumerate(options.strides)]
    )


def _sizes(options: AnchorOptions, index: int, scales: list[float]) -> Array:
    """(height, width) of a layer's anchors."""
    scale, following = scales[index], scales[index + 1]
    if index == 0 and options.reduce_lowest:
        pairs = [(0.1, 1.0), (scale, 2.0), (scale, 0.5)]
    else:
        pairs = [(scale, ratio) for ratio in options.aspect_ratios]
        if options.interpolated_ratio > 0:
            pairs.append((float(np.sqrt(scale * following)), options.interpolated_ratio))
    if options.fixed_size:
        return np.ones((len(pairs), 2))
    return np.array([(scale / np.sqrt(ratio), scale * np.sqrt(ratio)) for scale, ratio in pairs])


def _layer(stride: int, sizes: Array, width: int, height: int) -> Array:
    columns, rows = -(-width // stride), -(-height // stride)
    y, x = np.meshgrid((np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns, indexing="ij")
    centers = np.repeat(np.stack([y, x], axis=-1).reshape(-1, 2), len(sizes), axis=0)
    return np.concatenate([centers, np.tile(sizes, (rows * columns, 1))], axis=1)


def suppress(boxes: Array, classes: Array, limit: float, most: int | None = None) -> Array:
    """Greedy non-maximum suppression within each class.

    Args:
        boxes: corners, best score first.
        limit: overlap (intersection over union) above which the weaker of two boxes is dropped.
        most: boxes to keep at most; the work ends with the last of them.

    Returns:
        Positions of the boxes that are left, best first.
    """
    left = np.arange(len(boxes))
    kept: list[Any] = []
    while len(left) and len(kept) != most:
        best, rest = left[0], left[1:]
        kept.append(best)
        others = overlap(boxes[best], boxes[rest])
        left = rest[(others <= limit) | (classes[rest] != classes[best])]
    return np.array(kept, dtype=np.intp)


def overlap(box: Array, boxes: Array) -> Array:
    """Intersection over union of one box with many; 0 where both are empty."""
    start, end = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.clip(end - start, 0, None), axis=1)
    sizes = np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0, None), axis=1)
    union = np.prod(np.clip(box[2:] - box[:2], 0, None)) + sizes - shared
    found: Array = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return found
