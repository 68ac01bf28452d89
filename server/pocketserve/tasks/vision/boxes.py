"""Anchors, layouts and suppression of boxes, which are [n, (left, top, right, bottom)] in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from pocketserve.tasks.vision.detection_options import AnchorOptions
from pocketserve.tensors import Array


def to_corners(
    boxes: Array, box_type: str, order: tuple[int, ...] = (0, 1, 2, 3)
) -> Array:
    """Convert boxes [n, 4 or more columns] of any layout to corners.

    Args:
        box_type: ``boundaries`` (left, top, right, bottom), ``upper_left`` (left, top, width, height) or ``center``
            (center x, center y, width, height).
        order: where in a row these four numbers stand.
    """
    rows = boxes[:, list(order)].astype(np.float64)
    if box_type == "boundaries":
        return rows
    first, size = rows[:, :2], rows[:, 2:]
    start = first - size / 2 if box_type == "center" else first
    corners: Array = np.concatenate([start, start + size], axis=1)
    return corners


def decode_anchors(
    raw: Array, anchors: Array, scale: tuple[float, ...], exponential: bool
) -> Array:
    """Convert offsets from anchors to corners, as ratios.

    Args:
        raw, anchors: [n, (center y, center x, height, width)]; heights and widths may be logarithms of factors.
        scale: divisors of the four offsets.
    """
    offsets = raw[:, :4].astype(np.float64) / np.asarray(scale)
    center = offsets[:, :2] * anchors[:, 2:] + anchors[:, :2]
    with np.errstate(over="ignore"):
        size = (np.exp(offsets[:, 2:]) if exponential else offsets[:, 2:]) * anchors[
            :, 2:
        ]
    return to_corners(np.concatenate([center, size], axis=1), "center", (1, 0, 3, 2))


def generate_anchors(options: AnchorOptions, width: int, height: int) -> Array:
    """Return the anchors of an SSD, [n, (center y, center x, height, width)] as ratios of the input.

    One layer of cells per stride; each cell has one anchor per aspect ratio at the layer's scale, and one more at the
    geometric mean of that scale and the next. With ``reduce_lowest`` the first layer has three only.
    """
    scales = [
        *np.linspace(options.min_scale, options.max_scale, len(options.strides)),
        1.0,
    ]
    layers = []
    for index, stride in enumerate(options.strides):
        pairs = [(scales[index], ratio) for ratio in options.aspect_ratios]
        if index == 0 and options.reduce_lowest:
            pairs = [(0.1, 1.0), (scales[0], 2.0), (scales[0], 0.5)]
        elif options.interpolated_ratio > 0:
            pairs.append(
                (np.sqrt(scales[index] * scales[index + 1]), options.interpolated_ratio)
            )
        sizes = np.array(
            [(scale / np.sqrt(ratio), scale * np.sqrt(ratio)) for scale, ratio in pairs]
        )
        sizes = np.ones_like(sizes) if options.fixed_size else sizes
        columns, rows = -(-width // stride), -(-height // stride)
        y, x = np.meshgrid(
            (np.arange(rows) + 0.5) / rows,
            (np.arange(columns) + 0.5) / columns,
            indexing="ij",
        )
        centers = np.repeat(
            np.stack([y, x], axis=-1).reshape(-1, 2), len(sizes), axis=0
        )
        layers.append(
            np.concatenate([centers, np.tile(sizes, (rows * columns, 1))], axis=1)
        )
    return np.concatenate(layers)


def suppress(boxes: Array, classes: Array, limit: float, maximum: int) -> Array:
    """Return positions of at most ``maximum`` boxes that greedy suppression within each class leaves, best first.

    Args:
        boxes: corners, best score first.
        limit: overlap (intersection over union) above which the weaker of two boxes is dropped.
    """
    left = np.arange(len(boxes))
    best_first: list[Any] = []
    while len(left) and len(best_first) < maximum:
        best, rest = left[0], left[1:]
        best_first.append(best)
        left = rest[
            (overlap(boxes[best], boxes[rest]) <= limit)
            | (classes[rest] != classes[best])
        ]
    return np.array(best_first, dtype=np.intp)


def overlap(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of one box with many; 0 where both are empty."""
    start, end = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.clip(end - start, 0, None), axis=1)
    sizes = np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0, None), axis=1)
    union = np.prod(np.clip(box[2:] - box[:2], 0, None)) + sizes - shared
    ratios: Array = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return ratios
