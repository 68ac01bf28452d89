"""Judge a result by its outputs beside the original's: a conversion can end well and be garbage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compare.statistics import wilson
from pocketserve_lab.convert.converter import ConversionError

CLASSIFIERS = frozenset(
    {
        "image-classification",
        "audio-classification",
        "text-classification",
        "tabular-classification",
    }
)


class Bound(NamedTuple):
    """The difference that is accepted.

    Attributes:
        error: the norm of the difference, as a share of the norm of the original's output, in each channel.
        agreement: of a classifier, the share of inputs with the same best class.
    """

    error: float
    agreement: float


BOUNDS = {
    "none": Bound(1e-3, 0.99),
    "fp16": Bound(2e-2, 0.99),
    "dynamic": Bound(0.15, 0.95),
    "int8": Bound(0.30, 0.90),
    "int16x8": Bound(0.15, 0.95),
}
"""By quantisation. Of a quantised classifier, the best class counts most: its scores may move together."""

BY_CLASS = frozenset({"dynamic", "int8", "int16x8"})
MAX_ERROR_BY_CLASS = 0.75
"""Of a quantised classifier with the same best classes: scores that are further off are no scores any more."""

MAX_CHANNELS = 512
"""Of an output's last axis; such an output may hold different things side by side, as a detector's boxes and scores."""

LEAST_ROWS, LEAST_PEAK = 16, 0.05
"""A channel of fewer numbers, or of none this large (as a share of the output's largest, or of 1), has no error of its
own: those of a class that is nowhere in the samples are noise."""


class Agreement(NamedTuple):
    """The comparison of a result with its original.

    Attributes:
        error, largest: of the worst output: the relative error, and the largest difference of a number.
        same_class: the share of samples with the same best class; None for what is no classifier, or random input.
        samples: their number.
    """

    error: float
    largest: float
    same_class: float | None
    samples: int


def compare_outputs(
    original: Mapping[str, Array],
    result: Mapping[str, Array],
    task: str,
    count: int,
    *,
    random: bool,
) -> Agreement:
    """Compare the outputs of two versions on the same samples; an output's first axis counts them.

    Raises:
        ConversionError: they have other outputs, or numbers where there are none.
    """
    pairs = _pairs(original, result)
    by_channel = (
        task not in CLASSIFIERS
    )  # a class that is rarely likely has hardly a size
    differences = [
        _difference(name, first, second, by_channel=by_channel)
        for name, first, second in pairs
    ]
    error, largest = (max(values) for values in zip(*differences, strict=True))
    agreed = None
    if task in CLASSIFIERS and not random:
        _, first, second = pairs[0]
        agreed = _same_class(first, second)
    return Agreement(error, largest, agreed, count)


def _pairs(
    original: Mapping[str, Array], result: Mapping[str, Array]
) -> Sequence[tuple[str, Array, Array]]:
    """Return each output's name with both arrays: by name, else in the order of the models."""
    if len(original) != len(result):
        raise ConversionError(
            f"the result has {len(result)} outputs, and the original {len(original)}"
        )
    if set(original) == set(result):
        return [(name, array, result[name]) for name, array in original.items()]
    return [
        (name, array, other)
        for (name, array), other in zip(original.items(), result.values(), strict=True)
    ]


def _difference(
    name: str, first: Array, second: Array, *, by_channel: bool
) -> tuple[float, float]:
    """Return the relative error, of the worst channel or of all at once, and the largest difference of one output."""
    if first.size != second.size:
        sizes = f"{list(second.shape[1:])}, and the original's {list(first.shape[1:])}"
        raise ConversionError(f"the result's output {name!r} has shape {sizes}")
    if first.dtype == object or second.dtype == object:
        different = (
            float(np.mean(first.reshape(-1) != second.reshape(-1)))
            if first.size
            else 0.0
        )
        return different, different
    a, b = (array.reshape(-1).astype(np.float64) for array in (first, second))
    finite = np.isfinite(a)
    if not np.isfinite(b[finite]).all():
        raise ConversionError(
            f"the result's output {name!r} is not a number where the original's is"
        )
    if not finite.any():
        return 0.0, 0.0
    a, b = (np.where(finite, array, 0.0) for array in (a, b))
    size, peak = float(np.linalg.norm(a)) or 1.0, float(np.abs(a).max())
    error = float(np.linalg.norm(a - b)) / size
    channels = first.shape[-1]
    if (
        by_channel
        and peak
        and 1 < channels <= MAX_CHANNELS
        and a.size >= channels * LEAST_ROWS
    ):
        rows, gaps = (array.reshape(-1, channels) for array in (a, a - b))
        signal_channels = np.abs(rows).max(axis=0) >= LEAST_PEAK * min(1.0, peak)
        errors = np.linalg.norm(gaps[:, signal_channels], axis=0) / np.linalg.norm(
            rows[:, signal_channels], axis=0
        )
        error = max(error, float(errors.max(initial=0.0)))
    return error, float(np.abs(a - b).max())


def _same_class(first: Array, second: Array) -> float | None:
    """Return the share of samples whose largest score is at the same place; of one score, on the same side of 0.5."""
    a, b = (
        array.reshape(len(array), -1).astype(np.float64) for array in (first, second)
    )
    if a.shape != b.shape or not a.size:
        return None
    if a.shape[1] == 1:
        return float(np.mean((a > 0.5) == (b > 0.5)))
    return float(np.mean(a.argmax(axis=1) == b.argmax(axis=1)))


def check_agreement(agreement: Agreement, quantize: str, nearest: str = "") -> None:
    """Refuse a result that differs more than is accepted for its quantisation.

    Args:
        nearest: what may work instead.

    Raises:
        ConversionError: the sentence has the difference and the bound.
    """
    bound = BOUNDS[quantize]
    if _certainly_below(agreement.same_class, agreement.samples, bound.agreement):
        raise ConversionError(
            f"the result answers otherwise than the original: {agreement.same_class:.0%} of {agreement.samples} "
            f"samples have the same best class, which is too few for {bound.agreement:.0%} of all",
            nearest=nearest,
        )
    by_class = agreement.same_class is not None and quantize in BY_CLASS
    accepted = MAX_ERROR_BY_CLASS if by_class else bound.error
    if not agreement.error <= accepted:
        raise ConversionError(
            f"the result answers otherwise than the original: its outputs differ by {agreement.error:.2g} of their "
            f"size, and at most {accepted:g} is accepted",
            nearest=nearest,
        )


def _certainly_below(share: float | None, number: int, bound: float) -> bool:
    """Return whether a share of all lies below a bound, with 95 % confidence: of few samples, one differs by chance."""
    high = None if share is None else wilson(round(share * number), number).high
    return high is not None and high < bound


def doubts(agreement: Agreement, quantize: str) -> list[str]:
    """Return a sentence for the user where fewer samples agree than wanted, but so few that it may be chance."""
    share, bound = agreement.same_class, BOUNDS[quantize].agreement
    if share is None or share >= bound:
        return []
    return [
        f"only {share:.0%} of {agreement.samples} samples have the same best class, which may be chance or a loss "
        f"({bound:.0%} is wanted); more --samples, or pocketserve compare with labelled --data, can tell"
    ]
