"""The usual causes of a layer that differs, told apart by experiments: on its values, and on the other version's input.

Each check returns a :class:`Cause` where it explains the difference within the bound, else None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compare.alignment import Layer, LayerPair, relative_difference

RunChanged = Callable[[Callable[[Array], Array]], Array]
"""Run the other version with its input changed by a function; return the layer in question in the first's layout."""

MAX_STEPS = 24
"""Values that a layer of too wide a range still takes."""

MAX_CHANNELS = 16
FIT_ROUNDS = 15
LEAST_VALUES, LEAST_SEEN = 8, 0.1
"""Of a channel, values that a scale and a shift are fitted to; and the share of all that no ReLU has cut off."""
IMAGENET_MEAN, IMAGENET_STD = (
    np.array([0.485, 0.456, 0.406]),
    np.array([0.229, 0.224, 0.225]),
)
PIXEL_MEANS = np.array([123.675, 116.28, 103.53])
CONVENTIONS: Mapping[str, tuple[Array | float, Array | float]] = {
    "0 to 1": (1.0, 0.0),
    "-1 to 1": (2.0, -1.0),
    "0 to 255": (255.0, 0.0),
    "ImageNet's mean and deviation": (1 / IMAGENET_STD, -IMAGENET_MEAN / IMAGENET_STD),
    "0 to 255 less ImageNet's mean": (255.0, -PIXEL_MEANS),
}
"""Usual inputs, as scale and shift of a pixel between 0 and 1; three numbers are for red, green and blue."""

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "sigmoid": lambda x: 1 / (1 + np.exp(-np.clip(x, -60, 60))),
    "tanh": np.tanh,
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "SiLU": lambda x: x / (1 + np.exp(-np.clip(x, -60, 60))),
    "leaky ReLU (0.01)": lambda x: np.where(x < 0, 0.01 * x, x),
    "leaky ReLU (0.2)": lambda x: np.where(x < 0, 0.2 * x, x),
}


class Cause(NamedTuple):
    """An explanation.

    Attributes:
        kind: ``preprocessing``, ``channels``, ``layout``, ``activation``, ``calibration``, ``weights``,
            ``overflow``, ``rounding`` or ``operator``.
        sentence: for people; ``A`` and ``B`` are the two versions.
    """

    kind: str
    sentence: str


def overflow(pair: LayerPair) -> Cause | None:
    """Tell numbers that have become infinite or NaN in one version, which no other experiment can be made on."""
    finite = np.isfinite(pair.first.array), np.isfinite(pair.array)
    for name, layer, not_finite in (
        ("B", pair.other, finite[0] & ~finite[1]),
        ("A", pair.first, finite[1] & ~finite[0]),
    ):
        if not_finite.any():
            part = (
                f"{not_finite.sum():,} of {not_finite.size:,} numbers "
                f"of {name}'s {layer.operator} {layer.name[:60]!r}"
            )
            reason = "they exceed what its type holds, as half floats do beyond 65,504"
            return Cause(
                "overflow",
                f"{part} are infinite or NaN where the other version's are finite: {reason}",
            )
    return None


def rounding(pairs: Sequence[LayerPair]) -> Cause:
    """Tell differences that grow from layer to layer, of which none stands out."""
    return Cause(
        "rounding",
        "the difference grows little by little, as that of rounded weights and sums does, to "
        f"{pairs[-1].difference:.1%} in the last layer; none stands out, so that no layer is at fault. What it costs, "
        "compare says with labelled --data; if that is too much, calibrate with more samples like yours, or take fp16",
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
        before: the pair before it, which agrees; None where this is the input.
        skipped: layers of both versions between the two pairs that have no counterpart.
        rerun: None where the input cannot be changed, or is not what this layer reads first.
        image: the other version's input [samples, ...], for ``rerun``.
    """
    # An explanation has to leave less than there was; what was different before, it cannot explain.
    earlier = before.difference if before is not None else 0.0
    bound = min(max(bound, 1.5 * earlier), 0.6 * pair.difference)
    checks: list[Callable[[], Cause | None]] = [
        lambda: _replaced_activation(pair, before, bound),
        lambda: _activation(pair, bound),
        lambda: (
            _missing_activation(before, skipped, bound) if before is not None else None
        ),
        lambda: _cut_range(pair, bound),
        lambda: _coarse_steps(pair),
        lambda: _order(pair, bound),
    ]
    if before is None:
        checks.append(lambda: _affine_input(pair, bound))
    if rerun is not None and image is not None:
        checks.append(lambda: _changed_input(pair, rerun, image, bound))
    checks.append(lambda: _channel_factors(pair, bound))
    for check in checks:
        if (cause := check()) is not None:
            return cause
    operator = f"{pair.other.operator} {pair.other.name[:60]!r}"
    return Cause(
        "operator",
        f"B's {operator} computes something else from the same input: its weights differ, or the operator was "
        f"replaced by one that is not the same as A's {pair.first.operator}",
    )


def _activation(pair: LayerPair, bound: float) -> Cause | None:
    """Look for an activation that only one of the two has."""
    a, b = pair.first.array, pair.array
    if relative_difference(b, a) <= 2 * bound:
        return None
    if (name := _fitting(a, b, bound)) is not None:
        return Cause(
            "activation",
            f"B has a {name} in {pair.other.name[:60]!r} that A does not have there",
        )
    if (name := _fitting(b, a, bound)) is not None:
        return Cause(
            "activation", f"the {name} of A's {pair.first.name[:60]!r} is missing in B"
        )
    return None


def _fitting(values: Array, results: Array, bound: float) -> str | None:
    """Return the plainest activation that makes results of values about as well as the best one does."""
    differences = {
        name: relative_difference(function(values), results)
        for name, function in ACTIVATIONS.items()
    }
    best = min(differences.values())
    return (
        next(name for name, each in differences.items() if each <= 1.2 * best + 1e-6)
        if best <= bound
        else None
    )


def _replaced_activation(
    pair: LayerPair, before: LayerPair | None, bound: float
) -> Cause | None:
    """Look for two different activations of the same values."""
    a, b = pair.first.array, pair.array
    if before is None or before.first.array.shape != a.shape:
        return None
    results = {
        name: function(before.first.array) for name, function in ACTIVATIONS.items()
    }

    def nearest(layer: np.ndarray) -> str:
        return min(results, key=lambda name: relative_difference(results[name], layer))

    own = nearest(a)
    other = nearest(b)
    if (
        own == other
        or max(
            relative_difference(results[own], a), relative_difference(results[other], b)
        )
        > bound / 2
    ):
        return None
    return Cause(
        "activation", f"A has a {own} in {pair.first.name[:60]!r} where B has a {other}"
    )


def _missing_activation(
    before: LayerPair, skipped: tuple[Sequence[Layer], Sequence[Layer]], bound: float
) -> Cause | None:
    """Look for an activation between two pairs that has no counterpart, because its input is the other's output."""
    for layers, owner, lacking in ((skipped[0], "A", "B"), (skipped[1], "B", "A")):
        base = before.first.array if owner == "A" else before.other.array
        for layer in layers:
            for name, function in ACTIVATIONS.items():
                changes = (
                    layer.array.shape == base.shape
                    and relative_difference(layer.array, base) > bound
                )
                if (
                    changes
                    and relative_difference(function(base), layer.array) <= bound
                ):
                    return Cause(
                        "activation",
                        f"the {name} of {owner}'s {layer.name[:60]!r} is missing in {lacking}",
                    )
    return None


def _cut_range(pair: LayerPair, bound: float) -> Cause | None:
    """Look for values that are cut off at the ends of a range that was calibrated too narrow."""
    a, b = pair.first.array, pair.array
    low, high = float(b.min()), float(b.max())
    outside = float(np.mean((a < low - 1e-6) | (a > high + 1e-6)))
    if (
        outside > 0.001
        and low < high
        and relative_difference(np.clip(a, low, high), b) <= bound
    ):
        return Cause(
            "calibration",
            f"B cuts {pair.other.name[:60]!r} off at {low:.4g} and {high:.4g}, where A reaches {a.min():.4g} to "
            f"{a.max():.4g} ({outside:.1%} of the values): the range was calibrated too narrow, on samples "
            "unlike these",
        )
    return None


def _coarse_steps(pair: LayerPair) -> Cause | None:
    """Look for values that fall onto a few steps of a range that was calibrated too wide."""
    a, b = pair.first.array, pair.array
    levels = np.unique(b)
    if not 2 <= len(levels) <= MAX_STEPS or len(np.unique(a)) < 10 * len(levels):
        return None
    step = float(np.min(np.diff(levels)))
    if np.mean(np.abs(a - b) <= 0.75 * step) < 0.95:
        return None
    return Cause(
        "calibration",
        f"B's {pair.other.name[:60]!r} takes {len(levels)} values only, {step:.3g} apart: the range was calibrated too "
        "wide, by an outlier or on other data",
    )


def _order(pair: LayerPair, bound: float) -> Cause | None:
    """Look for the same numbers in another order."""
    a, b = pair.first.array, pair.array
    for axis in range(1, a.ndim):
        if (
            a.ndim == 4
            and a.shape[axis] in (3, 4)
            and relative_difference(_swapped(b, axis), a) <= bound
        ):
            return Cause(
                "channels", "B has the channels in the opposite order (RGB and BGR)"
            )
    rows = len(a)
    if (
        relative_difference(np.sort(b.reshape(rows, -1)), np.sort(a.reshape(rows, -1)))
        <= bound / 10
    ):
        return Cause(
            "layout",
            f"{pair.other.name[:60]!r} of B has the same numbers as A in another order: an axis was swapped, or the "
            "tensor was flattened in the other layout (NCHW and NHWC)",
        )
    return None


def _affine_input(pair: LayerPair, bound: float) -> Cause | None:
    """Compare two inputs that the task itself made differently."""
    a, b = pair.first.array, pair.array
    axes = tuple(range(a.ndim - 1))
    scale = b.std(axes) / np.maximum(a.std(axes), 1e-12)
    shift = b.mean(axes) - scale * a.mean(axes)
    if relative_difference(scale * a + shift, b) <= bound:
        text = (
            f"B's input is A's times {_numbers_text(scale)} plus {_numbers_text(shift)}"
        )
        return Cause(
            "preprocessing",
            f"{text}: the versions' files tell the task different means and scales",
        )
    return None


def _changed_input(
    pair: LayerPair, rerun: RunChanged, image: Array, bound: float
) -> Cause | None:
    """Run B on changed inputs: the change that makes it agree with A is what its input lacks."""
    a = pair.first.array

    def agrees(change: Callable[[Array], Array]) -> bool:
        return relative_difference(rerun(change), a) <= bound

    for axis, change in _channel_swaps(image):
        if agrees(change):
            return Cause(
                "channels",
                f"B expects the channels in the opposite order (RGB and BGR, axis {axis})",
            )
    for axes, change in _turns(image):
        if agrees(change):
            return Cause("layout", f"B expects its input with the axes {axes} swapped")
    for names, scale, shift in _conventions(image):
        if agrees(lambda x, s=scale, t=shift: x * s + t):  # type: ignore[misc]
            source, target = names
            return Cause(
                "preprocessing",
                f"B expects an input as {target} where A takes {source}: the mean and scale of [image] do not fit both",
            )
    return _fitted_input(a, rerun, image, bound)


def _channel_swaps(image: Array) -> Iterator[tuple[int, Callable[[Array], Array]]]:
    for axis in (1, image.ndim - 1):
        if image.ndim == 4 and image.shape[axis] in (3, 4):
            yield axis, partial(_swapped, axis=axis)


def _swapped(x: Array, axis: int) -> Array:
    """Return the first three channels in the opposite order; a fourth is transparency and stays."""
    colours = np.flip(x.take(range(3), axis), axis)
    return np.concatenate([colours, x.take(range(3, x.shape[axis]), axis)], axis)


def _turns(image: Array) -> Iterator[tuple[str, Callable[[Array], Array]]]:
    for axis, other in (
        ((1, 2), (2, 3)) if image.ndim == 4 else ((1, 2),) if image.ndim == 3 else ()
    ):
        if image.shape[axis] == image.shape[other]:
            yield f"{axis} and {other}", lambda x, i=axis, j=other: np.swapaxes(x, i, j)  # type: ignore[misc]
    if image.ndim == 4:
        yield "of its layout", _read_as_channels_first
        yield "of its layout", _read_as_channels_last


def _read_as_channels_first(x: Array) -> Array:
    """Read the numbers of NHWC as if they lay in NCHW."""
    n, h, w, c = x.shape
    return np.moveaxis(x.reshape(n, c, h, w), 1, -1)


def _read_as_channels_last(x: Array) -> Array:
    """Undo :func:`_read_as_channels_first`."""
    n, h, w, c = x.shape
    return np.moveaxis(x, -1, 1).reshape(n, h, w, c)


def _conventions(image: Array) -> Iterator[tuple[tuple[str, str], Array, Array]]:
    """Yield scale and shift from each usual input to each other one, along the axis of three channels."""
    axis = next(
        (
            axis
            for axis in (image.ndim - 1, 1)
            if image.ndim == 4 and image.shape[axis] == 3
        ),
        None,
    )
    for source, (scale, shift) in CONVENTIONS.items():
        for target, (new_scale, new_shift) in CONVENTIONS.items():
            factor = np.asarray(new_scale / np.asarray(scale))
            offset = np.asarray(new_shift - factor * shift)
            if source == target or (
                (factor.size > 1 or offset.size > 1) and axis is None
            ):
                continue
            shape = [1] * image.ndim
            if axis is not None:
                shape[axis] = 3
            spread = [
                np.broadcast_to(part, (3,)).reshape(shape) if part.size > 1 else part
                for part in (factor, offset)
            ]
            yield (source, target), spread[0], spread[1]


def _fitted_input(
    a: Array, rerun: RunChanged, image: Array, bound: float
) -> Cause | None:
    """Fit scale and shift of B's input, of all of it and then by channel, with Gauss and Newton's method."""
    axis = next(
        (axis for axis in (image.ndim - 1, 1) if 1 < image.shape[axis] <= MAX_CHANNELS),
        None,
    )
    sizes = [1] if axis is None else [1, image.shape[axis]]
    start = np.array([1.0, 0.0])
    for size in sizes:
        start = np.concatenate(
            [np.broadcast_to(part, (size,)) for part in np.split(start, 2)]
        )
        shape = [1] * image.ndim
        if size > 1 and axis is not None:
            shape[axis] = size

        def layer(parameters: Array, shape: Sequence[int] = tuple(shape)) -> Array:
            scale, shift = (part.reshape(shape) for part in np.split(parameters, 2))
            return rerun(lambda x: x * scale + shift)

        start, difference = _gauss_newton(a, layer, start)
        if difference <= bound:
            scale, shift = np.split(start, 2)
            return Cause(
                "preprocessing",
                f"B agrees with A when its input is taken times {_numbers_text(scale)} plus {_numbers_text(shift)}: it "
                "was made for another mean or scale than [image] gives it",
            )
    return None


def _gauss_newton(
    a: Array, layer: Callable[[Array], Array], parameters: Array
) -> tuple[Array, float]:
    """Return the parameters with the least relative difference to ``a``, and that."""
    value = layer(parameters)
    best = parameters, relative_difference(value, a)
    for _ in range(FIT_ROUNDS):
        columns = []
        for place in range(len(parameters)):
            moved = parameters.copy()
            moved[place] += 0.02
            columns.append(((layer(moved) - value) / 0.02).reshape(-1))
        step = np.linalg.lstsq(
            np.stack(columns, 1), (a - value).reshape(-1), rcond=1e-6
        )[0]
        for share in (1.0, 0.5, 0.1):
            moved = best[0] + share * step
            value = layer(moved)
            difference = relative_difference(value, a)
            if difference < best[1]:
                break
        else:
            break
        improved, best, parameters = best[1] - difference, (moved, difference), moved
        if improved < 1e-6:
            break
    return best


def _channel_factors(pair: LayerPair, bound: float) -> Cause | None:
    """Look for channels that are all multiplied and shifted by numbers of their own."""
    a, b = pair.first.array, pair.array
    for axis in {a.ndim - 1, 1} if a.ndim > 1 else ():
        channels = a.shape[axis]
        columns = [
            np.moveaxis(array, axis, 0).reshape(channels, -1) for array in (a, b)
        ]
        if columns[0].shape[1] >= LEAST_VALUES and _explains_channels(
            columns[0], columns[1], bound
        ):
            return Cause(
                "weights",
                f"each channel of B's {pair.other.name[:60]!r} is A's times one number plus another: a bias or a batch "
                "normalisation was folded wrongly, or weights were quantised with a wrong scale",
            )
    return None


def _explains_channels(a: Array, b: Array, bound: float) -> bool:
    """Return whether a scale and a shift for each row makes b of a; what a ReLU has cut off does not count."""
    uncut = (a > 0) & (b > 0) if a.min() == 0 == b.min() else np.ones(a.shape, bool)
    counts = np.maximum(uncut.sum(1, keepdims=True), 1)
    if uncut.mean() < LEAST_SEEN:
        return False
    mean_a, mean_b = (
        (array * uncut).sum(1, keepdims=True) / counts for array in (a, b)
    )
    centred_a, centred_b = (a - mean_a) * uncut, (b - mean_b) * uncut
    scale = (centred_a * centred_b).sum(1, keepdims=True) / np.maximum(
        (centred_a**2).sum(1, keepdims=True), 1e-12
    )
    return relative_difference((scale * centred_a + mean_b) * uncut, b * uncut) <= bound


def _numbers_text(numbers: Array) -> str:
    values = [f"{value:.4g}" for value in np.atleast_1d(numbers).reshape(-1)[:4]]
    return values[0] if len(set(values)) == 1 else f"({', '.join(values)})"
