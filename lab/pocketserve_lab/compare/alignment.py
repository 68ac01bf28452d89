"""Match the layers of two versions by order, shape and values.

Converters fuse, split and transpose layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array

SHAPE_SCORE = 0.25
"""Score of equal shapes, added to the correlation.

It lets layers after a fault match by their order."""

FUSED_SCORE = 0.35
"""Score of an operator with a fused activation against that activation as a layer."""

ACTIVATIONS = (
    "relu",
    "clip",
    "sigmoid",
    "tanh",
    "hardswish",
    "elu",
    "prelu",
    "leakyrelu",
    "gelu",
    "silu",
    "logistic",
)
LINEAR = frozenset({"dense", "fullyconnected", "gemm", "addmm", "matmul", "linear"})
OPERATOR_SCORE = 0.1
"""Score of equal operators: the values of layers that only rescale correlate alike."""

MAX_POINTS = 4096
"""Values of a layer that are compared."""


class Layer(NamedTuple):
    """A layer's results, [samples, ...], without axes of size 1."""

    name: str
    operator: str
    array: Array
    quantized: bool = False


class LayerPair(NamedTuple):
    """Two corresponding layers.

    ``array`` is the other's in the first one's layout.

    Attributes:
        places: their positions in both lists.
        view: the index in :func:`layouts_of` that gives the first one's layout.
        difference: the norm of the difference, as a share of the first one's norm.
    """

    first: Layer
    other: Layer
    array: Array
    places: tuple[int, int]
    view: int
    difference: float


def relative_difference(array: Array, reference: Array) -> float:
    """Return the norm of the difference relative to the reference's.

    It is infinite if the two are not finite in the same places.
    """
    if not _all_finite(array, reference):
        array, reference = _drop_equal(array, reference)
        if not _all_finite(array, reference):
            return float("inf")
    norm = float(np.linalg.norm(reference))
    distance = float(np.linalg.norm(array - reference))
    if not norm:
        return float(distance > 0)
    return distance / norm


def _drop_equal(array: Array, reference: Array) -> tuple[Array, Array]:
    """Replace equal infinities and NaNs, such as the -inf of a mask, by zeros."""
    equal = (array == reference) | (np.isnan(array) & np.isnan(reference))
    ignored = equal & ~np.isfinite(reference)
    return np.where(ignored, 0.0, array), np.where(ignored, 0.0, reference)


def _all_finite(array: Array, reference: Array) -> bool:
    return bool(np.isfinite(array).all() and np.isfinite(reference).all())


def align(first: Sequence[Layer], other: Sequence[Layer]) -> list[LayerPair]:
    """Return matching pairs in order; some layers stay alone.

    Dynamic programming maximises the sum of the pairs' scores.
    """
    candidates = list(map(_LayerViews.of, other))
    scores = np.zeros((len(first), len(other)))
    views = np.zeros((len(first), len(other)), int)
    for row, layer in enumerate(first):
        points = _points(layer.array)
        for column, candidate in enumerate(candidates):
            match = candidate.best_view(layer, points)
            if match is None:
                continue
            correlation, views[row, column] = match
            bonus = _operator_bonus(first, row, other, column)
            scores[row, column] = SHAPE_SCORE + correlation + bonus
    pairs = []
    for row, column in _best_path(scores):
        view = int(views[row, column])
        array = candidates[column].views[view]
        difference = relative_difference(array, first[row].array)
        places = row, column
        pairs.append(
            LayerPair(first[row], other[column], array, places, view, difference)
        )
    return pairs


def _operator_bonus(
    first: Sequence[Layer], row: int, other: Sequence[Layer], column: int
) -> float:
    """Return the score of two layers' operators."""
    if _is_fused(first, row, other, column) or _is_fused(other, column, first, row):
        return FUSED_SCORE
    if _is_same_operator(first[row].operator, other[column].operator):
        return OPERATOR_SCORE
    return 0.0


class _LayerViews(NamedTuple):
    """A layer in all its layouts, with the points of each."""

    views: list[Array]
    points: list[Array]

    @staticmethod
    def of(layer: Layer) -> _LayerViews:
        views = list(layouts_of(layer.array))
        return _LayerViews(views, list(map(_points, views)))

    def best_view(self, layer: Layer, points: Array) -> tuple[float, int] | None:
        """Return the best correlation and its layout.

        None if no shape fits. The first of equally good layouts counts.
        """
        best = None
        for index, view in enumerate(self.views):
            if view.shape != layer.array.shape:
                continue
            correlation = _correlation(points, self.points[index])
            if best is None or correlation > best[0]:
                best = correlation, index
        return best


def layouts_of(array: Array) -> Iterator[Array]:
    """Yield an array [samples, ...] unchanged, channels first, and channels last."""
    yield array
    if array.ndim > 2:
        yield np.moveaxis(array, -1, 1)
        yield np.moveaxis(array, 1, -1)


def _points(array: Array) -> Array:
    flat = array.reshape(-1)
    values = flat[:: max(1, flat.size // MAX_POINTS)].astype(np.float64)
    values = np.where(np.isfinite(values), values, 0.0)
    centred = values - values.mean()
    norm = np.linalg.norm(centred)
    if not norm:
        return np.asarray(centred)
    return np.asarray(centred / norm)


def _correlation(points: Array, other: Array) -> float:
    return max(0.0, float(points @ other))


def _is_fused(
    layers: Sequence[Layer], place: int, following: Sequence[Layer], activation: int
) -> bool:
    """Return whether a layer has fused the others' activation."""
    if _is_activation(layers[place]) or activation == 0:
        return False
    if not _is_activation(following[activation]):
        return False
    has_next = place + 1 < len(layers)
    if has_next and _is_activation(layers[place + 1]):
        return False
    operator = following[activation - 1].operator
    return _is_same_operator(layers[place].operator, operator)


def _is_activation(layer: Layer) -> bool:
    return _plain_name(layer.operator).startswith(ACTIVATIONS)


def _is_same_operator(operator: str, other: str) -> bool:
    """Return whether names such as ``CONV_2D`` and ``Conv`` mean the same."""
    a, b = _plain_name(operator), _plain_name(other)
    if a in LINEAR and b in LINEAR:
        return True
    return a.startswith(b) or b.startswith(a)


def _plain_name(operator: str) -> str:
    return operator.casefold().replace("_", "")


def _best_path(scores: Array) -> Iterator[tuple[int, int]]:
    """Yield the pairs with the largest sum, both positions ascending."""
    rows, columns = scores.shape
    best = _best_sums(scores)
    row = column = 0
    while row < rows and column < columns:
        score = scores[row, column]
        if score and best[row, column] == score + best[row + 1, column + 1]:
            yield row, column
            row, column = row + 1, column + 1
        elif best[row, column] == best[row + 1, column]:
            row += 1
        else:
            column += 1


def _best_sums(scores: Array) -> Array:
    """Return the largest sum of pairs from each position on."""
    rows, columns = scores.shape
    best = np.zeros((rows + 1, columns + 1))
    for row in range(rows - 1, -1, -1):
        for column in range(columns - 1, -1, -1):
            sums = [best[row + 1, column], best[row, column + 1]]
            score = scores[row, column]
            if score:
                sums.append(score + best[row + 1, column + 1])
            best[row, column] = max(sums)
    return best
