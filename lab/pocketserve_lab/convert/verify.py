"""Check a result by comparing its outputs with the original's.

A tool can end without an error and write garbage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compare.statistics import wilson
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.decisions import rule_of

CLASSIFIERS = frozenset(
    {
        "image-classification",
        "audio-classification",
        "text-classification",
        "tabular-classification",
    }
)


class Bound(NamedTuple):
    """The accepted difference.

    Attributes:
        error: the norm of the difference, as a share of the norm of the original's
            output, in each channel.
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
"""By quantisation.

For a quantised classifier, the best class matters most: its scores may shift
together."""

BY_CLASS = frozenset({"dynamic", "int8", "int16x8"})
MAX_ERROR_BY_CLASS = 0.75
"""Accepted error of a quantised classifier with the same best classes."""

MAX_CHANNELS = 512
"""Largest last axis of an output that is compared channel by channel.

Such an output may contain different things, such as a detector's boxes and scores."""

MAX_GROWTH = 1.5
LEAST_ERROR = 1e-3
"""In other programs, an error may be this many times larger, and this much.

Sums of floats depend on the order."""

LEAST_ROWS = 16
LEAST_PEAK = 0.05
"""A channel with fewer numbers, or only smaller ones, has no error of its own.

Sizes are relative to the output's largest number, or to 1. Channels of a class that is
not in the samples are noise."""


class Agreement(NamedTuple):
    """The comparison of a result with its original.

    Attributes:
        error, largest: of the worst output: the relative error, and the largest
            difference of a number.
        same_class: the share of samples with the same best class; None if the model is
            no classifier, or for random input.
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
    """Compare the outputs of two versions on the same samples.

    The first axis of an output counts the samples.

    Raises:
        ConversionError: the outputs do not correspond, or are not finite.
    """
    pairs = _pairs(original, result)
    is_classifier = task in CLASSIFIERS
    errors, differences = [], []
    for name, first, second in pairs:
        # A class that is rarely likely has hardly a size, so classifiers are compared
        # as a whole.
        error, largest = _difference(name, first, second, by_channel=not is_classifier)
        errors.append(error)
        differences.append(largest)
    agreed = None
    if is_classifier and not random:
        _, first, second = pairs[0]
        agreed = _same_class(first, second)
    # NumPy's maximum keeps NaN, so that it is rejected.
    return Agreement(float(np.max(errors)), float(np.max(differences)), agreed, count)


def _pairs(
    original: Mapping[str, Array], result: Mapping[str, Array]
) -> Sequence[tuple[str, Array, Array]]:
    """Return each output's name with both arrays.

    They are matched by name if all names agree, else by order.
    """
    if len(original) != len(result):
        raise ConversionError(
            f"the result has {len(result)} outputs, and the original {len(original)}"
        )
    results = list(result.values())
    if set(original) == set(result):
        results = [result[name] for name in original]
    return list(zip(original, original.values(), results, strict=True))


def _difference(
    name: str, first: Array, second: Array, *, by_channel: bool
) -> tuple[float, float]:
    """Return an output's relative error and largest difference.

    The error is that of the worst channel, or of the whole.
    """
    if first.size != second.size:
        sizes = f"{list(second.shape[1:])}, and the original's {list(first.shape[1:])}"
        raise ConversionError(f"the result's output {name!r} has shape {sizes}")
    if first.dtype == object or second.dtype == object:
        share = _share_of_different(first, second)
        return share, share
    if not first.size:
        return 0.0, 0.0
    a, b = _finite(name, first, second)
    size = float(np.linalg.norm(a)) or 1.0
    error = float(np.linalg.norm(a - b)) / size
    channels = first.shape[-1]
    has_channels = 1 < channels <= MAX_CHANNELS and a.size >= channels * LEAST_ROWS
    if by_channel and has_channels and a.any():
        rows = a.reshape(-1, channels)
        error = max(error, _worst_channel(rows, rows - b.reshape(-1, channels)))
    return error, float(np.abs(a - b).max())


def _finite(name: str, first: Array, second: Array) -> tuple[Array, Array]:
    """Return both outputs [n], with zeros where the original is not finite."""
    a = first.reshape(-1).astype(np.float64)
    b = second.reshape(-1).astype(np.float64)
    finite = np.isfinite(a)
    if not np.isfinite(b[finite]).all():
        raise ConversionError(
            f"the result's output {name!r} is not a number where the original's is"
        )
    return np.where(finite, a, 0.0), np.where(finite, b, 0.0)


def _share_of_different(first: Array, second: Array) -> float:
    """Return the share of texts that differ."""
    if not first.size:
        return 0.0
    return float(np.mean(first.reshape(-1) != second.reshape(-1)))


def _worst_channel(rows: Array, differences: Array) -> float:
    """Return the largest relative error of a channel that has a signal.

    Args:
        rows: the original's, [n, channels].
        differences: from the result's, of the same shape.
    """
    peaks = np.abs(rows).max(axis=0)
    has_signal = peaks >= LEAST_PEAK * min(1.0, float(peaks.max()))
    sizes = np.linalg.norm(rows[:, has_signal], axis=0)
    errors = np.linalg.norm(differences[:, has_signal], axis=0) / sizes
    return float(errors.max(initial=0.0))


def _same_class(first: Array, second: Array) -> float | None:
    """Return the share of samples whose best class is the same.

    A single score is compared by the decision that it means.
    """
    a = first.reshape(len(first), -1).astype(np.float64)
    b = second.reshape(len(second), -1).astype(np.float64)
    if a.shape != b.shape or not a.size:
        return None
    rule = rule_of(a)
    return float(np.mean(rule.decide(a) == rule.decide(b)))


def variant_error(original: Mapping[str, Array], result: Mapping[str, Array]) -> float:
    """Return the relative error of one answer; infinite if sizes differ."""
    errors = []
    for name, first, second in _pairs(original, result):
        if first.shape != second.shape and first.size != second.size:
            return float("inf")
        try:
            error, _ = _difference(name, first, second, by_channel=False)
        except ConversionError:
            return float("inf")
        errors.append(error)
    return float(np.max(errors))


def variant_bound(agreement: Agreement | None, quantize: str) -> float:
    """Return the accepted error of a single answer to inputs of another shape.

    A fixed size makes an answer entirely wrong, while quantisation noise varies
    between samples.
    """
    if quantize in BY_CLASS:
        return MAX_ERROR_BY_CLASS
    bound = BOUNDS[quantize].error
    return bound if agreement is None else max(bound, 3 * agreement.error)


def check_agreement(agreement: Agreement, quantize: str, nearest: str = "") -> None:
    """Reject a result that differs too much.

    Args:
        nearest: an alternative for the message.

    Raises:
        ConversionError: the text has the difference and the bound.
    """
    bound = BOUNDS[quantize]
    if _certainly_below(agreement.same_class, agreement.samples, bound.agreement):
        raise ConversionError(
            "the result answers differently from the original: "
            f"{agreement.same_class:.0%} of {agreement.samples} samples have the same "
            f"best class, which is too few for {bound.agreement:.0%} of all",
            nearest=nearest,
        )
    accepted = bound.error
    if agreement.same_class is not None and quantize in BY_CLASS:
        accepted = MAX_ERROR_BY_CLASS
    if not agreement.error <= accepted:
        raise ConversionError(
            "the result answers differently from the original: its outputs differ by "
            f"{agreement.error:.2g} of their size, and at most {accepted:g} is accepted",
            nearest=nearest,
        )


def loss_of(agreement: Agreement) -> float:
    """Return the share of samples with another best class.

    For models that are no classifiers, it is the relative error.
    """
    if agreement.same_class is None:
        return agreement.error
    return 1.0 - agreement.same_class


def check_loss(agreement: Agreement, max_loss: float) -> None:
    """Raise ConversionError if a result loses more than the user accepts."""
    loss = loss_of(agreement)
    if loss <= max_loss:
        return
    fault = f"its outputs differ by {loss:.2%} of their size"
    if agreement.same_class is not None:
        fault = f"{loss:.2%} of {agreement.samples} samples have another best class"
    raise ConversionError(
        f"{fault}, and --max-loss allows {max_loss:.2%}",
        nearest="a larger --max-loss, or more --samples",
    )


def worse_in_other_programs(
    served: Agreement, plain: Agreement
) -> tuple[Agreement, list[str]]:
    """Return the agreement to report, and sentences on a difference.

    Args:
        served: in the server.
        plain: in the framework without the server's options.
    """
    has_same_classes = plain.same_class == served.same_class
    if plain.error <= MAX_GROWTH * served.error + LEAST_ERROR and has_same_classes:
        return served, []
    share = ""
    if plain.same_class is not None:
        share = f", {plain.same_class:.0%} same best class"
    return plain, [
        f"its outputs differ by {served.error:.2g} of their size in Pocketserve, and by "
        f"{plain.error:.2g} in other programs on this processor{share}; in ONNX Runtime "
        'set session.x64quantprecision to "1" there'
    ]


def _certainly_below(share: float | None, number: int, bound: float) -> bool:
    """Return whether a share lies below a bound, with 95 % confidence.

    With few samples, a single different one may be chance.
    """
    if share is None:
        return False
    high = wilson(round(share * number), number).high
    return high is not None and high < bound


def doubts(agreement: Agreement, quantize: str) -> list[str]:
    """Return a warning if too few samples agree."""
    share, bound = agreement.same_class, BOUNDS[quantize].agreement
    if share is None or share >= bound:
        return []
    return [
        f"only {share:.0%} of {agreement.samples} samples have the same best class, "
        f"which may be chance or a loss ({bound:.0%} is wanted); more --samples, or "
        "pocketserve compare with labelled --data, can tell"
    ]
