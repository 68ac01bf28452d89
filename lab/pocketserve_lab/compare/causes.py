"""The usual causes of a layer that differs, identified by experiments.

An experiment changes the layer's values, or the other version's input. Each check
returns a :class:`Cause` if it explains the difference within the bound, else None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compare.alignment import Layer, LayerPair, relative_difference

InputFunction = Callable[[Array], Array]
RunChanged = Callable[[InputFunction], Array]
"""Run the other version with its input changed by a function.

Returns the layer in question in the first version's layout."""

MAX_STEPS = 24
"""Most distinct values of a layer whose range was calibrated too wide."""

MAX_CHANNELS = 16
FIT_ROUNDS = 15
LEAST_VALUES = 8
"""Values that a channel needs for a fit of scale and shift."""

LEAST_SEEN = 0.1
"""Share of all values that a fit needs, without those that a ReLU cut off."""

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406])
IMAGENET_STD = np.array([0.229, 0.224, 0.225])
PIXEL_MEANS = np.array([123.675, 116.28, 103.53])
CONVENTIONS: Mapping[str, tuple[Array | float, Array | float]] = {
    "0 to 1": (1.0, 0.0),
    "-1 to 1": (2.0, -1.0),
    "0 to 255": (255.0, 0.0),
    "ImageNet's mean and deviation": (1 / IMAGENET_STD, -IMAGENET_MEAN / IMAGENET_STD),
    "0 to 255 less ImageNet's mean": (255.0, -PIXEL_MEANS),
}
"""Usual inputs, as scale and shift of a pixel between 0 and 1.

Three numbers are for red, green and blue."""


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -60, 60))))


def _leaky_relu(x: Array, slope: float) -> Array:
    return np.where(x < 0, slope * x, x)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "SiLU": lambda x: x * _sigmoid(x),
    "leaky ReLU (0.01)": partial(_leaky_relu, slope=0.01),
    "leaky ReLU (0.2)": partial(_leaky_relu, slope=0.2),
}


class Cause(NamedTuple):
    """An explanation.

    Attributes:
        kind: ``preprocessing``, ``channels``, ``layout``, ``activation``,
            ``calibration``, ``weights``, ``overflow``, ``rounding`` or ``operator``.
        sentence: for people; ``A`` and ``B`` are the two versions.
    """

    kind: str
    sentence: str


def overflow(pair: LayerPair) -> Cause | None:
    """Find numbers that are infinite or NaN in one version only.

    No other experiment works on them.
    """
    finite_a, finite_b = np.isfinite(pair.first.array), np.isfinite(pair.array)
    only_b = finite_a & ~finite_b
    if only_b.any():
        return _overflow_of("B", pair.other, only_b)
    only_a = finite_b & ~finite_a
    if only_a.any():
        return _overflow_of("A", pair.first, only_a)
    return None


def _overflow_of(version: str, layer: Layer, overflown: Array) -> Cause:
    return Cause(
        "overflow",
        f"{overflown.sum():,} of {overflown.size:,} numbers of {version}'s "
        f"{_described(layer)} are infinite or NaN where the other version's are "
        "finite: they exceed the range of its type, as half floats do beyond 65,504",
    )


def _name_of(layer: Layer) -> str:
    return repr(layer.name[:60])


def _described(layer: Layer) -> str:
    return f"{layer.operator} {_name_of(layer)}"


def rounding(pairs: Sequence[LayerPair]) -> Cause:
    """Return the cause of gradually growing differences."""
    return Cause(
        "rounding",
        "the difference grows gradually, as that of rounded weights and sums does, to "
        f"{pairs[-1].difference:.1%} in the last layer; no single layer is at fault. "
        "Compare with labelled --data to see the effect on accuracy; if it is too "
        "large, calibrate with more samples like yours, or use fp16",
    )


def explain(
    pair: LayerPair,
    before: LayerPair | None,
    skipped: tuple[Sequence[Layer], Sequence[Layer]],
    bound: float,
    rerun: RunChanged | None,
    image: Array | None,
) -> Cause:
    """Return the likeliest cause of the first pair that differs.

    Args:
        before: the pair before it, which agrees; None if this is the input.
        skipped: layers of both versions between the two pairs, without a counterpart.
        rerun: None if the input cannot be changed, or this layer does not read it
            first.
        image: the other version's input [samples, ...], for ``rerun``.
    """
    # An explanation must leave a smaller difference than there was, but it cannot
    # explain the difference of earlier layers.
    if before is not None:
        bound = max(bound, 1.5 * before.difference)
    bound = min(bound, 0.6 * pair.difference)
    checks: list[Callable[[], Cause | None]] = [
        partial(_replaced_activation, pair, before, bound),
        partial(_activation, pair, bound),
        partial(_missing_activation, before, skipped, bound),
        partial(_cut_range, pair, bound),
        partial(_coarse_steps, pair),
        partial(_order, pair, bound),
    ]
    if before is None:
        checks.append(partial(_affine_input, pair, bound))
    if rerun is not None and image is not None:
        checks.append(partial(_changed_input, pair, rerun, image, bound))
    checks.append(partial(_channel_factors, pair, bound))
    for check in checks:
        cause = check()
        if cause is not None:
            return cause
    return _other_operator(pair)


def _other_operator(pair: LayerPair) -> Cause:
    """Return the cause of a difference that no check explains."""
    return Cause(
        "operator",
        f"B's {_described(pair.other)} computes something else from the same input: "
        "its weights differ, or the operator was replaced by one that is not the same "
        f"as A's {pair.first.operator}",
    )


def _activation(pair: LayerPair, bound: float) -> Cause | None:
    """Look for an activation that only one of the two has."""
    a, b = pair.first.array, pair.array
    if relative_difference(b, a) <= 2 * bound:
        return None
    name = _fitting(a, b, bound)
    if name is not None:
        layer = _name_of(pair.other)
        return Cause(
            "activation", f"B has a {name} in {layer} that A does not have there"
        )
    name = _fitting(b, a, bound)
    if name is not None:
        layer = _name_of(pair.first)
        return Cause("activation", f"the {name} of A's {layer} is missing in B")
    return None


def _fitting(values: Array, results: Array, bound: float) -> str | None:
    """Return the activation that turns values into results.

    Of several that fit about equally well, the simplest one.
    """
    differences = {}
    for name, function in ACTIVATIONS.items():
        differences[name] = relative_difference(function(values), results)
    best = min(differences.values())
    if best > bound:
        return None
    enough = 1.2 * best + 1e-6
    return next(name for name, each in differences.items() if each <= enough)


def _replaced_activation(
    pair: LayerPair, before: LayerPair | None, bound: float
) -> Cause | None:
    """Look for two different activations of the same values."""
    a, b = pair.first.array, pair.array
    if before is None or before.first.array.shape != a.shape:
        return None
    own, own_difference = _nearest_activation(before.first.array, a)
    other, other_difference = _nearest_activation(before.first.array, b)
    if own == other or max(own_difference, other_difference) > bound / 2:
        return None
    return Cause(
        "activation", f"A has a {own} in {_name_of(pair.first)} where B has a {other}"
    )


def _nearest_activation(values: Array, results: Array) -> tuple[str, float]:
    """Return the activation that fits best, and its relative difference."""
    differences = {}
    for name, function in ACTIVATIONS.items():
        differences[name] = relative_difference(function(values), results)
    nearest = min(differences, key=lambda name: differences[name])
    return nearest, differences[nearest]


def _missing_activation(
    before: LayerPair | None,
    skipped: tuple[Sequence[Layer], Sequence[Layer]],
    bound: float,
) -> Cause | None:
    """Look for an activation between two pairs that has no counterpart.

    The alignment leaves it alone because its input matches the other's output.
    """
    if before is None:
        return None
    for layer in skipped[0]:
        name = _activation_of(before.first.array, layer.array, bound)
        if name is not None:
            text = f"the {name} of A's {_name_of(layer)} is missing in B"
            return Cause("activation", text)
    for layer in skipped[1]:
        name = _activation_of(before.other.array, layer.array, bound)
        if name is not None:
            text = f"the {name} of B's {_name_of(layer)} is missing in A"
            return Cause("activation", text)
    return None


def _activation_of(values: Array, results: Array, bound: float) -> str | None:
    """Return the first activation that explains how results differ from values."""
    if values.shape != results.shape or relative_difference(results, values) <= bound:
        return None
    for name, function in ACTIVATIONS.items():
        if relative_difference(function(values), results) <= bound:
            return name
    return None


def _cut_range(pair: LayerPair, bound: float) -> Cause | None:
    """Look for values cut off by a too narrow range."""
    a, b = pair.first.array, pair.array
    low, high = float(b.min()), float(b.max())
    outside = float(np.mean((a < low - 1e-6) | (a > high + 1e-6)))
    if outside <= 0.001 or low >= high:
        return None
    if relative_difference(np.clip(a, low, high), b) > bound:
        return None
    return Cause(
        "calibration",
        f"B cuts {_name_of(pair.other)} off at {low:.4g} and {high:.4g}, where A "
        f"reaches {a.min():.4g} to {a.max():.4g} ({outside:.1%} of the values): the "
        "range was calibrated too narrow, on samples unlike these",
    )


def _coarse_steps(pair: LayerPair) -> Cause | None:
    """Look for coarse steps of a too wide range."""
    a, b = pair.first.array, pair.array
    levels = np.unique(b)
    if not 2 <= len(levels) <= MAX_STEPS or len(np.unique(a)) < 10 * len(levels):
        return None
    step = float(np.min(np.diff(levels)))
    if np.mean(np.abs(a - b) <= 0.75 * step) < 0.95:
        return None
    return Cause(
        "calibration",
        f"B's {_name_of(pair.other)} takes {len(levels)} values only, {step:.3g} apart: "
        "the range was calibrated too wide, by an outlier or on other data",
    )


def _order(pair: LayerPair, bound: float) -> Cause | None:
    """Look for the same numbers in another order."""
    a, b = pair.first.array, pair.array
    for axis in _colour_axes(a, range(1, a.ndim)):
        if relative_difference(_swapped(b, axis), a) <= bound:
            return Cause(
                "channels", "B has the channels in the opposite order (RGB and BGR)"
            )
    rows = len(a)
    sorted_a, sorted_b = np.sort(a.reshape(rows, -1)), np.sort(b.reshape(rows, -1))
    if relative_difference(sorted_b, sorted_a) > bound / 10:
        return None
    return Cause(
        "layout",
        f"{_name_of(pair.other)} of B has the same numbers as A in another order: an "
        "axis was swapped, or the tensor was flattened in the other layout (NCHW and "
        "NHWC)",
    )


def _colour_axes(array: Array, axes: Iterable[int]) -> list[int]:
    """Return those axes of pictures that have three or four channels."""
    if array.ndim != 4:
        return []
    return [axis for axis in axes if array.shape[axis] in (3, 4)]


def _affine_input(pair: LayerPair, bound: float) -> Cause | None:
    """Compare two inputs that the task itself prepared differently."""
    a, b = pair.first.array, pair.array
    axes = tuple(range(a.ndim - 1))
    scale = b.std(axes) / np.maximum(a.std(axes), 1e-12)
    shift = b.mean(axes) - scale * a.mean(axes)
    if relative_difference(scale * a + shift, b) > bound:
        return None
    return Cause(
        "preprocessing",
        f"B's input is A's times {_numbers_text(scale)} plus {_numbers_text(shift)}: "
        "the versions' files give the task different means and scales",
    )


def _changed_input(
    pair: LayerPair, rerun: RunChanged, image: Array, bound: float
) -> Cause | None:
    """Look for a change of B's input that makes it agree with A."""
    a = pair.first.array

    def agrees(change: InputFunction) -> bool:
        return relative_difference(rerun(change), a) <= bound

    for axis in _colour_axes(image, (1, image.ndim - 1)):
        if agrees(partial(_swapped, axis=axis)):
            return Cause(
                "channels",
                "B expects the channels in the opposite order "
                f"(RGB and BGR, axis {axis})",
            )
    for axes, change in _turns(image):
        if agrees(change):
            return Cause("layout", f"B expects its input with the axes {axes} swapped")
    for convention in _conventions(image):
        if agrees(convention.apply):
            return Cause(
                "preprocessing",
                f"B expects an input as {convention.target} where A takes "
                f"{convention.source}: the mean and scale of [image] do not fit both",
            )
    return _fitted_input(a, rerun, image, bound)


def _swapped(x: Array, axis: int) -> Array:
    """Reverse the first three channels; a fourth is transparency and stays."""
    colours = np.flip(x.take(range(3), axis), axis)
    return np.concatenate([colours, x.take(range(3, x.shape[axis]), axis)], axis)


def _turns(image: Array) -> Iterator[tuple[str, InputFunction]]:
    """Yield axes of an input, and a function that swaps them."""
    swaps = {3: [(1, 2)], 4: [(1, 2), (2, 3)]}.get(image.ndim, [])
    for axis, other in swaps:
        if image.shape[axis] == image.shape[other]:
            swap = partial(np.swapaxes, axis1=axis, axis2=other)
            yield f"{axis} and {other}", swap
    if image.ndim == 4:
        yield "of its layout", _read_as_channels_first
        yield "of its layout", _read_as_channels_last


def _read_as_channels_first(x: Array) -> Array:
    """Read NHWC numbers as if they were NCHW."""
    n, h, w, c = x.shape
    return np.moveaxis(x.reshape(n, c, h, w), 1, -1)


def _read_as_channels_last(x: Array) -> Array:
    """Undo :func:`_read_as_channels_first`."""
    n, h, w, c = x.shape
    return np.moveaxis(x, -1, 1).reshape(n, h, w, c)


def _conventions(image: Array) -> Iterator[_InputConversion]:
    """Yield the change from each usual input to each other one."""
    colours = [
        a for a in (image.ndim - 1, 1) if image.ndim == 4 and image.shape[a] == 3
    ]
    axis = colours[0] if colours else None
    for source, (scale, shift) in CONVENTIONS.items():
        for target, (new_scale, new_shift) in CONVENTIONS.items():
            factor = np.asarray(new_scale / np.asarray(scale))
            offset = np.asarray(new_shift - factor * shift)
            by_channel = factor.size > 1 or offset.size > 1
            if source == target or (by_channel and axis is None):
                continue
            factor = _along_axis(factor, axis, image.ndim)
            offset = _along_axis(offset, axis, image.ndim)
            yield _InputConversion(source, target, factor, offset)


class _InputConversion(NamedTuple):
    """The change from one usual input to another."""

    source: str
    target: str
    factor: Array
    offset: Array

    def apply(self, x: Array) -> Array:
        return np.asarray(x * self.factor + self.offset)


def _along_axis(numbers: Array, axis: int | None, ndim: int) -> Array:
    """Shape numbers for broadcasting along one axis."""
    if numbers.size == 1 or axis is None:
        return numbers
    shape = [1] * ndim
    shape[axis] = numbers.size
    return numbers.reshape(shape)


def _fitted_input(
    a: Array, rerun: RunChanged, image: Array, bound: float
) -> Cause | None:
    """Fit scale and shift of B's input, globally and by channel."""
    axis = None
    sizes = [1]
    for candidate in (1, image.ndim - 1):
        if 1 < image.shape[candidate] <= MAX_CHANNELS:
            axis = candidate
    if axis is not None:
        sizes.append(image.shape[axis])
    scale, shift = np.ones(1), np.zeros(1)
    for size in sizes:
        start = np.concatenate(
            [np.broadcast_to(scale, (size,)), np.broadcast_to(shift, (size,))]
        )

        def layer(parameters: Array) -> Array:
            scale, shift = np.split(parameters, 2)
            factor = _along_axis(scale, axis, image.ndim)
            offset = _along_axis(shift, axis, image.ndim)
            return rerun(lambda x: x * factor + offset)

        parameters, difference = _gauss_newton(a, layer, start)
        scale, shift = np.split(parameters, 2)
        if difference <= bound:
            return Cause(
                "preprocessing",
                "B agrees with A when its input is multiplied by "
                f"{_numbers_text(scale)} and {_numbers_text(shift)} is added: it "
                "was made for another mean or scale than [image] gives it",
            )
    return None


def _gauss_newton(
    a: Array, layer: Callable[[Array], Array], parameters: Array
) -> tuple[Array, float]:
    """Minimise a layer's relative difference to ``a`` by the Gauss-Newton method.

    Returns the best parameters and their difference.
    """
    value = layer(parameters)
    best, least = parameters, relative_difference(value, a)
    for _ in range(FIT_ROUNDS):
        step = _newton_step(a, layer, best, value)
        previous = least
        for share in (1.0, 0.5, 0.1):
            moved = best + share * step
            value = layer(moved)
            difference = relative_difference(value, a)
            if difference < least:
                best, least = moved, difference
                break
        if not previous - least >= 1e-6:
            break
    return best, least


def _newton_step(
    a: Array, layer: Callable[[Array], Array], parameters: Array, value: Array
) -> Array:
    """Return the step towards ``a`` by numeric derivatives."""
    columns = []
    for place in range(len(parameters)):
        moved = parameters.copy()
        moved[place] += 0.02
        columns.append(((layer(moved) - value) / 0.02).reshape(-1))
    jacobian = np.stack(columns, 1)
    step, *_ = np.linalg.lstsq(jacobian, (a - value).reshape(-1), rcond=1e-6)
    return np.asarray(step)


def _channel_factors(pair: LayerPair, bound: float) -> Cause | None:
    """Look for channels with individual scales and shifts."""
    a, b = pair.first.array, pair.array
    if a.ndim < 2:
        return None
    for axis in {a.ndim - 1, 1}:
        channels = a.shape[axis]
        rows_a = np.moveaxis(a, axis, 0).reshape(channels, -1)
        rows_b = np.moveaxis(b, axis, 0).reshape(channels, -1)
        if rows_a.shape[1] < LEAST_VALUES:
            continue
        if _explains_channels(rows_a, rows_b, bound):
            return Cause(
                "weights",
                f"each channel of B's {_name_of(pair.other)} is A's times one number "
                "plus another: a bias or a batch normalisation was folded wrongly, or "
                "weights were quantised with a wrong scale",
            )
    return None


def _explains_channels(a: Array, b: Array, bound: float) -> bool:
    """Return whether scaling and shifting each row explains b.

    Values that a ReLU has cut off do not count.
    """
    uncut = np.ones(a.shape, bool)
    if a.min() == 0 == b.min():
        uncut = (a > 0) & (b > 0)
    if uncut.mean() < LEAST_SEEN:
        return False
    counts = np.maximum(uncut.sum(1, keepdims=True), 1)
    mean_a = (a * uncut).sum(1, keepdims=True) / counts
    mean_b = (b * uncut).sum(1, keepdims=True) / counts
    centred_a, centred_b = (a - mean_a) * uncut, (b - mean_b) * uncut
    covariance = (centred_a * centred_b).sum(1, keepdims=True)
    variance = (centred_a**2).sum(1, keepdims=True)
    scale = covariance / np.maximum(variance, 1e-12)
    return relative_difference((scale * centred_a + mean_b) * uncut, b * uncut) <= bound


def _numbers_text(numbers: Array) -> str:
    flat = np.atleast_1d(numbers).reshape(-1)
    texts = [f"{value:.4g}" for value in flat[:4]]
    if len(set(texts)) == 1:
        return texts[0]
    return f"({', '.join(texts)})"
