"""Convert, generate and suppress boxes.

Boxes are [n, (left, top, right, bottom)] in float64.
"""

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
        box_type: ``boundaries`` (left, top, right, bottom), ``upper_left`` (left, top, width,
            height) or ``center`` (center x, center y, width, height).
        order: positions of these four numbers in a row.
    """
    rows = boxes[:, list(order)].astype(np.float64)
    if box_type == "boundaries":
        return rows
    first = rows[:, :2]
    size = rows[:, 2:]
    start = first
    if box_type == "center":
        start = first - size / 2
    corners: Array = np.concatenate([start, start + size], axis=1)
    return corners


def decode_anchors(
    raw: Array, anchors: Array, scale: tuple[float, ...], exponential: bool
) -> Array:
    """Convert offsets from anchors to corners, as ratios.

    Args:
        raw: [n, (center y, center x, height, width)]; sizes may be logarithms of factors.
        anchors: in the same layout.
        scale: divisors of the four offsets.
    """
    offsets = raw[:, :4].astype(np.float64) / np.asarray(scale)
    anchor_sizes = anchors[:, 2:]
    center = offsets[:, :2] * anchor_sizes + anchors[:, :2]
    factors = offsets[:, 2:]
    with np.errstate(over="ignore"):
        if exponential:
            factors = np.exp(factors)
        size = factors * anchor_sizes
    return to_corners(np.concatenate([center, size], axis=1), "center", (1, 0, 3, 2))


def generate_anchors(options: AnchorOptions, width: int, height: int) -> Array:
    """Return an SSD's anchors, [n, (center y, center x, height, width)], as ratios.

    Each stride has a layer of cells. A cell has one anchor per aspect ratio at the
    layer's scale, and one at the geometric mean of that scale and the next. With
    ``reduce_lowest`` the first layer has three only.
    """
    layers = []
    for index, stride in enumerate(options.strides):
        sizes = _anchor_sizes(options, index)
        columns = -(-width // stride)
        rows = -(-height // stride)
        cells = _cell_centers(rows, columns)
        centers = np.repeat(cells, len(sizes), axis=0)
        repeated = np.tile(sizes, (len(cells), 1))
        layers.append(np.concatenate([centers, repeated], axis=1))
    return np.concatenate(layers)


def _cell_centers(rows: int, columns: int) -> Array:
    """Return the center (y, x) of each cell, row by row."""
    centers_y = (np.arange(rows) + 0.5) / rows
    centers_x = (np.arange(columns) + 0.5) / columns
    y, x = np.meshgrid(centers_y, centers_x, indexing="ij")
    return np.stack([y, x], axis=-1).reshape(-1, 2)


def _anchor_sizes(options: AnchorOptions, index: int) -> Array:
    """Return the (height, width) of each anchor in a cell of a layer."""
    lowest = options.min_scale
    highest = options.max_scale
    scales = [*np.linspace(lowest, highest, len(options.strides)), 1.0]
    scale = scales[index]
    pairs = [(scale, ratio) for ratio in options.aspect_ratios]
    if index == 0 and options.reduce_lowest:
        pairs = [(0.1, 1.0), (scale, 2.0), (scale, 0.5)]
    elif options.interpolated_ratio > 0:
        mean = np.sqrt(scale * scales[index + 1])
        pairs.append((mean, options.interpolated_ratio))
    sizes = []
    for pair_scale, ratio in pairs:
        root = np.sqrt(ratio)
        sizes.append((pair_scale / root, pair_scale * root))
    if options.fixed_size:
        return np.ones((len(sizes), 2))
    return np.array(sizes)


def suppress(boxes: Array, classes: Array, limit: float, maximum: int) -> Array:
    """Return positions of the boxes left by greedy suppression, best first.

    Boxes are compared within each class.

    Args:
        boxes: corners, best score first.
        limit: overlap (intersection over union) above which the weaker box is dropped.
        maximum: the most positions to return.
    """
    remaining = np.arange(len(boxes))
    best_first: list[Any] = []
    while len(remaining) and len(best_first) < maximum:
        best = remaining[0]
        rest = remaining[1:]
        best_first.append(best)
        is_apart = overlap(boxes[best], boxes[rest]) <= limit
        remaining = rest[is_apart | (classes[rest] != classes[best])]
    return np.array(best_first, dtype=np.intp)


def _sizes(starts: Array, ends: Array) -> Array:
    """Return the size of each box [n, 2] to [n, 2]; 0 for an empty one."""
    sizes: Array = np.prod(np.clip(ends - starts, 0, None), axis=1)
    return sizes


def overlap(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of a box with others; 0 for empty boxes."""
    start = np.maximum(box[:2], boxes[:, :2])
    end = np.minimum(box[2:], boxes[:, 2:])
    shared = _sizes(start, end)
    sizes = _sizes(boxes[:, :2], boxes[:, 2:])
    size = np.prod(np.clip(box[2:] - box[:2], 0, None))
    union = size + sizes - shared
    ratios: Array = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return ratios
