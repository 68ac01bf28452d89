"""Match the layers of two versions by order, shape and values: converters fuse, split and transpose them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array

SHAPE_SCORE = 0.25
"""What equal shapes alone are worth beside the correlation: layers after a fault match by their order."""

FUSED_SCORE = 0.35
"""What it is worth that one operator has its activation inside, and the other is the activation behind it."""

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
"""What operators of one name are worth: of several that only rescale, the values correlate alike."""

MAX_POINTS = 4096
"""Values of a layer that the match looks at."""


class Layer(NamedTuple):
    """A layer's results for all samples, [samples, ...], without axes of size 1."""

    name: str
    operator: str
    array: Array
    quantized: bool = False


class LayerPair(NamedTuple):
    """Two layers that correspond; ``array`` is the other's in the first one's layout.

    Attributes:
        places: their positions in both lists.
        view: of :func:`layouts_of`, the one that makes the other's layout the first one's.
        difference: the norm of the difference, as a share of the first one's norm.
    """

    first: Layer
    other: Layer
    array: Array
    places: tuple[int, int]
    view: int
    difference: float


def relative_difference(array: Array, reference: Array) -> float:
    """Return the norm of the difference as a share of the reference's norm; not finite where only one is."""
    if not (np.isfinite(array).all() and np.isfinite(reference).all()):
        alike = (array == reference) | (
            np.isnan(array) & np.isnan(reference)
        )  # such as the -inf of a mask
        array, reference = (
            np.where(alike & ~np.isfinite(reference), 0.0, each)
            for each in (array, reference)
        )
        if not (np.isfinite(array).all() and np.isfinite(reference).all()):
            return float("inf")
    norm = float(np.linalg.norm(reference))
    distance = float(np.linalg.norm(array - reference))
    return distance / norm if norm else float(distance > 0)


def align(first: Sequence[Layer], other: Sequence[Layer]) -> list[LayerPair]:
    """Return pairs in order, by dynamic programming over the sum of their correlations; some layers stay alone."""
    views = [list(layouts_of(layer.array)) for layer in other]
    points = [[_points(view) for view in each] for each in views]
    scores = np.zeros((len(first), len(other)))
    layouts = np.zeros((len(first), len(other)), int)
    for row, layer in enumerate(first):
        own = _points(layer.array)
        for column, each in enumerate(views):
            if sorted(layer.array.shape[1:]) == sorted(each[0].shape[1:]):
                fits = [
                    place
                    for place, view in enumerate(each)
                    if view.shape == layer.array.shape
                ]
                values = [
                    (_correlation(own, points[column][place]), -place) for place in fits
                ]
                if values:
                    best, place = max(values)
                    bonus = OPERATOR_SCORE * _is_same_operator(
                        layer.operator, other[column].operator
                    )
                    if _is_fused(first, row, other, column) or _is_fused(
                        other, column, first, row
                    ):
                        bonus = FUSED_SCORE
                    scores[row, column] = SHAPE_SCORE + best + bonus
                    layouts[row, column] = -place
    return [
        LayerPair(
            first[row],
            other[column],
            array := views[column][layouts[row, column]],
            (row, column),
            int(layouts[row, column]),
            relative_difference(array, first[row].array),
        )
        for row, column in _best_path(scores)
    ]


def layouts_of(array: Array) -> Iterator[Array]:
    """Yield an array [samples, ...] as it is, with its last axis first, and with its first axis last."""
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
    return np.asarray(centred / norm if norm else centred)


def _correlation(points: Array, other: Array) -> float:
    return max(0.0, float(points @ other))


def _is_fused(
    layers: Sequence[Layer], place: int, following: Sequence[Layer], activation: int
) -> bool:
    """Return whether a layer has no activation behind it, and the other one is an activation behind its like."""
    if (
        _is_activation(layers[place])
        or not activation
        or not _is_activation(following[activation])
    ):
        return False
    alone = place + 1 == len(layers) or not _is_activation(layers[place + 1])
    return alone and _is_same_operator(
        layers[place].operator, following[activation - 1].operator
    )


def _is_activation(layer: Layer) -> bool:
    return layer.operator.casefold().replace("_", "").startswith(ACTIVATIONS)


def _is_same_operator(operator: str, other: str) -> bool:
    """Return whether names such as ``CONV_2D`` and ``Conv`` mean the same."""
    names = sorted(
        (operator.casefold().replace("_", ""), other.casefold().replace("_", "")),
        key=len,
    )
    return names[1].startswith(names[0]) or set(names) <= LINEAR


def _best_path(scores: Array) -> Iterator[tuple[int, int]]:
    """Yield the places of the pairs with the largest sum, both ascending."""
    rows, columns = scores.shape
    best = np.zeros((rows + 1, columns + 1))
    for row in range(rows - 1, -1, -1):
        for column in range(columns - 1, -1, -1):
            paired = (
                scores[row, column] + best[row + 1, column + 1]
                if scores[row, column]
                else 0.0
            )
            best[row, column] = max(
                paired, best[row + 1, column], best[row, column + 1]
            )
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
