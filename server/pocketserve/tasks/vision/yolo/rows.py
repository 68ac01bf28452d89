"""Read YOLO detections with more than a box.

A row is a box, a score per class and the extra numbers, and rows are the output's
columns. A model that suppresses overlapping boxes itself returns a box, a score, a class
and the extra numbers, in rows. Source: ultralytics/ultralytics, utils/nms.py and
``NMSModel`` in engine/exporter.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.model_facts import named_tensor
from pocketserve.tasks.scores import real_values
from pocketserve.tensors import Array, TensorSpec

MAX_CANDIDATES = 1000  # boxes that suppression looks at: it compares each with each
PIXELS_FROM = 8.0  # ratios hardly leave 0 to 1; the exporter's TFLite files hold ratios, all others pixels
_EPSILON = 1e-7


class Detections(NamedTuple):
    """Detections that reach a score, best first.

    Attributes:
        boxes: [n, 4] in pixels of the input, in the model's own order.
        scores: [n], like ``classes``.
        extras: [n, extra].
        scale: factors of x and y from the model's coordinates to pixels of the input.
        suppressed: whether the model suppresses overlapping boxes.
    """

    boxes: Array
    scores: Array
    classes: Array
    extras: Array
    scale: tuple[float, float]
    suppressed: bool


class RowReader:
    """Read the rows of an output.

    Args:
        spec: the output with the rows.
        extra: numbers of a row besides its box and its classes.
        classes: number of classes; 0 if unknown.
    """

    def __init__(self, spec: TensorSpec, extra: int, classes: int = 0) -> None:
        self.spec = spec
        self._extra = extra
        self._classes = classes

    @property
    def suppressed(self) -> bool:
        """Return whether the output's shape is that of suppressed boxes."""
        return self._is_suppressed(self.spec.shape)

    def _is_suppressed(self, shape: Sequence[int]) -> bool:
        columns = 4 + self._classes + self._extra
        if self._classes and len(shape) == 3 and shape[1] == columns:
            return False
        return bool(shape) and shape[-1] == 6 + self._extra

    def read(self, array: Array, size: tuple[int, int], floor: float) -> Detections:
        """Return the best rows, at most MAX_CANDIDATES.

        Args:
            array: one run's output.
            size: (width, height) of the model's input.
            floor: the lowest score.

        Raises:
            ValueError: the output's shape doesn't fit.
        """
        suppressed = self._is_suppressed(array.shape)
        rows = self._table(array, suppressed)
        if suppressed:
            scores = rows[:, 4]
            classes = rows[:, 5]
            extras = rows[:, 6:]
        else:
            end = rows.shape[1] - self._extra
            class_scores = rows[:, 4:end]
            classes = class_scores.argmax(axis=1)
            scores = class_scores.max(axis=1)
            extras = rows[:, end:]
        usable = np.isfinite(rows).all(axis=1)
        best = _best_positions(scores, usable & (scores >= floor))
        scale = _scale(rows[usable, :4], size)
        return Detections(
            boxes=rows[best, :4].astype(np.float64) * (*scale, *scale),
            scores=scores[best].astype(np.float64),
            classes=classes[best].astype(np.int64),
            extras=extras[best].astype(np.float64),
            scale=scale,
            suppressed=suppressed,
        )

    def _table(self, array: Array, suppressed: bool) -> Array:
        """Return an output's rows, one per box."""
        output = f"output {self.spec.name!r} of shape {list(array.shape)}"
        table = real_values(array, self.spec)
        if table.ndim == 3 and table.shape[0] == 1:
            table = table[0]
        if table.ndim != 2:
            raise ValueError(f"{output} holds no rows")
        rows = table if suppressed else table.T
        least = 5
        if suppressed:
            least = 6
        if rows.shape[1] < least + self._extra:
            raise ValueError(f"{output} has too few numbers a row")
        return rows


def _scale(boxes: Array, size: tuple[int, int]) -> tuple[float, float]:
    """Return the factors from the coordinates of boxes to pixels."""
    if boxes.size and float(np.abs(boxes).max()) > PIXELS_FROM:
        return 1.0, 1.0
    return float(size[0]), float(size[1])


def rows_output(
    outputs: Sequence[TensorSpec], key: str, name: str | None
) -> TensorSpec:
    """Return the named output, else the first with three dimensions."""
    if name is not None:
        return named_tensor(outputs, key, name)
    for spec in outputs:
        if len(spec.shape) == 3 or spec.open:
            return spec
    raise ModelLoadError(f"model.toml: {key} needs an output of three dimensions")


def _best_positions(scores: Array, accepted: Array) -> Array:
    """Return the positions of accepted rows, best first, at most MAX_CANDIDATES."""
    best = np.flatnonzero(accepted)
    order = np.argsort(-scores[best], kind="stable")
    return best[order[:MAX_CANDIDATES]]


def corners_of(boxes: Array, angles: Array) -> Array:
    """Return the corners [n, 4, (x, y)] of rotated boxes.

    Boxes are (center x, center y, width, height).
    """
    cosines = np.cos(angles)
    sines = np.sin(angles)
    centers = boxes[:, :2]
    half_width = boxes[:, 2] / 2
    half_height = boxes[:, 3] / 2
    along = np.stack([half_width * cosines, half_width * sines], axis=1)
    across = np.stack([-half_height * sines, half_height * cosines], axis=1)
    corners = [centers + along + across, centers + along - across]
    corners += [centers - along - across, centers - along + across]
    stacked: Array = np.stack(corners, axis=1)
    return stacked


def suppress_rotated(
    boxes: Array, angles: Array, classes: Array, limit: float, maximum: int
) -> Array:
    """Return positions of at most ``maximum`` rotated boxes, best first.

    A box is dropped if a better one of its class overlaps it, even a dropped one.

    Args:
        boxes: [n, (center x, center y, width, height)], best score first.
        limit: overlap above which a box is dropped.
    """
    shapes = _covariances(boxes, angles)
    dropped = np.zeros(len(boxes), dtype=bool)
    for position in range(len(boxes) - 1):
        later = slice(position + 1, None)
        overlaps = _rotated_overlap(
            boxes[position], shapes[position], boxes[later], shapes[later]
        )
        dropped[later] |= (overlaps > limit) & (classes[later] == classes[position])
    remaining: Array = np.flatnonzero(~dropped)[:maximum]
    return remaining


def _covariances(boxes: Array, angles: Array) -> Array:
    """Return the covariance (xx, yy, xy) of each box as a normal distribution."""
    first = boxes[:, 2] ** 2 / 12
    second = boxes[:, 3] ** 2 / 12
    cosines = np.cos(angles)
    sines = np.sin(angles)
    xx = first * cosines**2 + second * sines**2
    yy = first * sines**2 + second * cosines**2
    xy = (first - second) * cosines * sines
    stacked: Array = np.stack([xx, yy, xy], axis=1)
    return stacked


def _rotated_overlap(box: Array, shape: Array, boxes: Array, shapes: Array) -> Array:
    """Return 1 minus the Hellinger distance of a box to others.

    Boxes are seen as normal distributions. Source of the measure: Llerena et al., "Gaussian
    Bounding Boxes and Probabilistic Intersection-over-Union", arXiv:2106.06072.
    """
    xx, yy, xy = (shape + shapes).T
    dx, dy = (box[:2] - boxes[:, :2]).T
    determinant = xx * yy - xy**2
    distance = (xx * dy**2 + yy * dx**2) / (determinant + _EPSILON) / 4
    distance -= xy * dx * dy / (determinant + _EPSILON) / 2
    own = max(0.0, float(shape[0] * shape[1] - shape[2] ** 2))
    determinants = np.clip(shapes[:, 0] * shapes[:, 1] - shapes[:, 2] ** 2, 0, None)
    mean = 4 * np.sqrt(own * determinants)
    distance += np.log(determinant / (mean + _EPSILON) + _EPSILON) / 2
    distance = np.clip(distance, _EPSILON, 100)
    overlap: Array = 1 - np.sqrt(1 - np.exp(-distance) + _EPSILON)
    return overlap


def mask_inside(
    weights: Array,
    prototypes: Array,
    size: tuple[int, int],
    box: tuple[int, int, int, int],
) -> Array:
    """Return whether each pixel of a box belongs to an object, [height, width].

    Args:
        weights: [count], the object's share of each prototype.
        prototypes: [count, rows, columns], covering the whole input.
        size: (width, height) of the model's input.
        box: (left, top, right, bottom) in whole pixels of the input.
    """
    left, top, right, bottom = box
    logits = np.tensordot(weights, prototypes, axes=1)
    columns = _interpolated(logits.T, size[0], left, right).T
    inside: Array = _interpolated(columns, size[1], top, bottom) > 0
    return inside


def _interpolated(rows: Array, size: int, start: int, end: int) -> Array:
    """Interpolate linearly between row centers to ``size`` rows.

    Return rows ``start`` to ``end`` of these.
    """
    positions = (np.arange(start, end) + 0.5) * len(rows) / size - 0.5
    positions = np.clip(positions, 0, len(rows) - 1)
    lower = np.floor(positions).astype(np.intp)
    upper = np.minimum(lower + 1, len(rows) - 1)
    share = (positions - lower)[:, None]
    interpolated: Array = rows[lower] * (1 - share) + rows[upper] * share
    return interpolated
