"""Estimates with intervals, and tests whether a difference is chance.

All are deterministic: the seed is fixed. ``lab/tests/compare/test_coverage.py``
simulates their coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compare.significance.distributions import (
    NORMAL,
    binomial,
    t_cdf,
    t_quantile,
)

FLIPS = 4000
MAX_EXACT = 12
"""With up to this many differences other than 0, all changes of sign are tried.

With more, :data:`FLIPS` random ones."""

MAX_DRAWN = 200
"""With more differences, their sums are normal enough."""

ALPHA = 0.05
LEAST_FOR_INTERVAL = 6
"""Turns or scores that an interval needs: fewer don't show how much they vary."""

BISECTIONS = 60
SEED = 15


class Estimate(NamedTuple):
    """A number with its 95 % interval.

    None where too little was measured for one.
    """

    value: float
    low: float | None
    high: float | None


# Times


def percentiles(
    turns: Sequence[Sequence[float]], shares: Sequence[float] = (0.5, 0.9, 0.99)
) -> list[Estimate]:
    """Return percentiles; the median with an interval.

    Samples of one turn resemble each other, so a turn counts as one observation: the
    median is the geometric mean of the turns' medians. The others are percentiles of
    all samples, without intervals: a turn has too few samples for a tail.

    Args:
        turns: the samples of each turn, at least one in all.
    """
    filled = [np.asarray(turn, float) for turn in turns if len(turn)]
    if not filled:
        raise ValueError("there are no samples")
    together = np.concatenate(filled)
    estimates = []
    for share in shares:
        estimate = Estimate(float(np.quantile(together, share)), None, None)
        if share == 0.5:
            medians = [float(np.median(turn)) for turn in filled]
            estimate = mean_time(medians)
        estimates.append(estimate)
    return estimates


def mean_time(values: Sequence[float], comparisons: int = 1) -> Estimate:
    """Return the geometric mean with the interval of the mean logarithm by t.

    Exact for log-normal values.

    Args:
        values: above 0.
        comparisons: intervals that must hold at the same time (Bonferroni).
    """
    logs = np.log(np.asarray(values, float))
    mean = float(logs.mean())
    if len(logs) < LEAST_FOR_INTERVAL:
        return Estimate(math.exp(mean), None, None)
    half = _t_steps(len(logs), comparisons) * float(logs.std(ddof=1))
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _t_steps(number: int, comparisons: int = 1) -> float:
    """Return half an interval's width in deviations."""
    quantile = t_quantile(1 - ALPHA / 2 / comparisons, number - 1)
    return quantile / math.sqrt(number)


def time_ratio(
    times: Sequence[float], reference: Sequence[float], comparisons: int = 1
) -> Estimate:
    """Return the geometric mean of ``times / reference`` by round, with its interval.

    Both were measured in the same rounds, right after each other, so whatever slowed a
    round down slowed down both. A geometric mean gives the same ranking whichever of
    the two is the reference (Fleming and Wallace, Communications of the ACM 29, 1986,
    pages 218-221).
    """
    ratios = np.asarray(times, float) / np.asarray(reference, float)
    return mean_time(ratios.tolist(), comparisons)


# Scores


def mean_score(values: Sequence[float]) -> Estimate:
    """Return a mean with an interval that allows for skewed values.

    Hall's transformation of t (Hall, Journal of the Royal Statistical Society B 54,
    1992, pages 221-228). Equal values tell nothing about the spread.
    """
    scores = np.asarray(values, float)
    mean = float(scores.mean())
    deviation = float(scores.std(ddof=1)) if len(scores) > 1 else 0.0
    if len(scores) < LEAST_FOR_INTERVAL or deviation <= 1e-12 * abs(mean):
        return Estimate(mean, None, None)
    below, above = _hall_steps(scores)
    return Estimate(mean, mean - deviation * below, mean + deviation * above)


def _hall_steps(scores: Array) -> tuple[float, float]:
    """Return how many deviations the ends lie below and above the mean."""
    centred = scores - scores.mean()
    skewness = float(np.mean(centred**3)) / float(scores.std()) ** 3
    steps = _t_steps(len(scores))
    below = _untransformed(steps, skewness, len(scores))
    return below, -_untransformed(-steps, skewness, len(scores))


def _untransformed(steps: float, skewness: float, number: int) -> float:
    """Return the deviations from the mean that Hall's function maps to ``steps``."""
    third = skewness / 3
    shifted = steps - skewness / (6 * number)
    if abs(third) < 1e-6:
        return shifted
    root: float = np.cbrt(1 + 3 * third * shifted)
    return (root - 1) / third


def wilson(successes: int, number: int) -> Estimate:
    """Return a share with its score interval.

    Wilson, Journal of the American Statistical Association 22, 1927, 209-212.
    """
    z = NORMAL.inv_cdf(1 - ALPHA / 2)
    share = successes / number
    divisor = 1 + z * z / number
    middle = (share + z * z / (2 * number)) / divisor
    variance = share * (1 - share) / number + z * z / (4 * number * number)
    half = z / divisor * math.sqrt(variance)
    # Rounding may put the share itself outside.
    low = min(share, max(0.0, middle - half))
    high = max(share, min(1.0, middle + half))
    return Estimate(share, low, high)


def share_p(successes: int, number: int, bound: float) -> tuple[float, float]:
    """Return the exact one-sided p of a share below and above a bound."""
    probabilities = binomial(number, bound)
    below = float(probabilities[: successes + 1].sum())
    above = float(probabilities[successes:].sum())
    return min(1.0, below), min(1.0, above)


# Differences


def paired_difference(gains: int, losses: int, number: int) -> Estimate:
    """Return the difference of two accuracies with its score interval.

    Tango, Statistics in Medicine 17, 1998, pages 891-908.

    Args:
        gains: samples that only the new one gets right.
        losses: samples that only the old one gets right.
        number: all samples.
    """
    z = NORMAL.inv_cdf(1 - ALPHA / 2)
    value = (gains - losses) / number
    low = _score_end(gains, losses, number, -1.0, z)
    high = _score_end(gains, losses, number, 1.0, -z)
    return Estimate(value, min(low, value), max(high, value))


def _score_end(
    gains: int, losses: int, number: int, outside: float, score: float
) -> float:
    """Return the difference with a given score, between the estimate and ``outside``."""
    inside = (gains - losses) / number
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        if abs(difference_score(gains, losses, number, middle)) < abs(score):
            inside = middle
        else:
            outside = middle
    return (inside + outside) / 2


def difference_score(
    gains: float, losses: float, number: int, difference: float
) -> float:
    """Return Tango's score of a true difference: normal if it is the true one."""
    linear = -gains - losses + (2 * number - gains + losses) * difference
    constant = -losses * difference * (1 - difference)
    root = math.sqrt(max(0.0, linear * linear - 8 * number * constant))
    lost_share = (root - linear) / (4 * number)
    variance = number * (2 * lost_share + difference * (1 - difference))
    distance = gains - losses - number * difference
    if variance <= 1e-12:
        return math.copysign(math.inf, distance) if abs(distance) > 1e-9 else 0.0
    return distance / math.sqrt(variance)


def mcnemar_exact(gains: int, losses: int) -> float:
    """Return the two-sided p that two classifiers are equally good.

    Only samples on which exactly one is right count. The exact conditional form: such a
    sample favours either one with probability 1/2 (McNemar, Psychometrika 12, 1947,
    pages 153-157; Fagerland, Lydersen and Laake, BMC Medical Research Methodology
    13:91, 2013, formula 2).

    Args:
        gains: samples that only the new one gets right.
        losses: samples that only the old one gets right.
    """
    number = gains + losses
    tail = float(binomial(number, 0.5)[: min(gains, losses) + 1].sum())
    return min(1.0, 2 * tail)


def paired_permutation(differences: Sequence[float]) -> tuple[Estimate, float]:
    """Return the mean of paired differences, and its two-sided p.

    If it is chance, each difference could as well have had the other sign: p is the
    share of all such changes of sign whose mean is at least as far from 0 (Fisher, The
    Design of Experiments, 1935, section 21). With many differences, random changes are
    drawn and 1 is added to both counts (Davison and Hinkley, Bootstrap Methods and
    their Application, 1997, formula 4.11).
    """
    values = np.asarray(differences, float)
    return mean_score(differences), _permutation_p(values)


def _permutation_p(values: Array) -> float:
    """Return the share of changes of sign with at least as extreme a sum."""
    values = values[values != 0]  # a sign changes nothing there
    if len(values) > MAX_DRAWN:
        return _normal_p(values)
    sums = np.abs(_signs(len(values)) @ values)
    rounding = 1e-9 * float(np.abs(values).sum())
    observed = abs(float(values.sum())) - rounding
    extreme_count = int(np.count_nonzero(sums >= observed))
    if len(values) > MAX_EXACT:
        return (1 + extreme_count) / (1 + len(sums))
    return extreme_count / len(sums)


def _normal_p(values: Array) -> float:
    """Return the p of many values, whose sums are normal under changes of sign."""
    deviation = math.sqrt(float(values @ values)) or 1.0
    return 2 * NORMAL.cdf(-abs(float(values.sum())) / deviation)


@lru_cache(maxsize=4)
def _signs(number: int) -> Array:
    """Return rows of -1 and 1, all or random ones."""
    if number > MAX_EXACT:
        return np.random.default_rng(SEED).choice([-1.0, 1.0], (FLIPS, number))
    bits = np.arange(1 << number)[:, None] >> np.arange(number) & 1
    return 1.0 - 2.0 * bits


# Margins and several versions


def classes_margin_p(gains: float, losses: float, number: int, margin: float) -> float:
    """Return the one-sided p that the true loss of accuracy exceeds a margin."""
    return 1 - NORMAL.cdf(difference_score(gains, losses, number, -margin))


def mean_margin_p(
    differences: Sequence[float], margin: float, *, is_share: bool = False
) -> float:
    """Return the one-sided p, by t, that the true mean lies below ``-margin``.

    Equal differences tell nothing about the spread. Rare losses escape t, but scores
    from 0 to 1 have a bound: no spread is wider than that of samples gained or lost
    entirely, so their p is the least.

    Args:
        is_share: whether scores are from 0 to 1.
    """
    values = np.asarray(differences, float)
    if len(values) < LEAST_FOR_INTERVAL:
        return 1.0
    bound = _share_margin_p(values, margin) if is_share else None
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    if error <= 1e-12 * margin:
        return 1.0 if bound is None else bound
    distance = float(values.mean()) + margin
    p = 1 - t_cdf(distance / error, len(values) - 1)
    return max(p, bound or 0.0)


def _share_margin_p(values: Array, margin: float) -> float:
    """Return the p of as many whole samples gained and lost."""
    gains = float(values[values > 0].sum())
    losses = -float(values[values < 0].sum())
    return classes_margin_p(gains, losses, len(values), margin)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number.

    Holm, Scandinavian Journal of Statistics 6, 1979, pages 65-70.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(order):
        scaled = p_values[index] * (len(p_values) - place)
        largest = max(largest, min(1.0, scaled))
        adjusted[index] = largest
    return adjusted
