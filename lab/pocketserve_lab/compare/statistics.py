"""Estimates with intervals, and tests whether a difference is chance.

All are deterministic: the seed is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array

RESAMPLES = 1000
FLIPS = 4000
MAX_EXACT = 12
"""With up to this many differences, all changes of sign are tried.

With more, :data:`FLIPS` random ones."""

CONFIDENCE = 0.95
LEAST_FOR_INTERVAL = 6
"""Turns or samples that an interval needs.

Between the smallest and the largest of fewer, the median lies in under 95 of 100
cases."""

SEED = 15


class Estimate(NamedTuple):
    """A number with its 95 % interval.

    None where too little was measured for one.
    """

    value: float
    low: float | None
    high: float | None


def percentiles(
    turns: Sequence[Sequence[float]], shares: Sequence[float] = (0.5, 0.9, 0.99)
) -> list[Estimate]:
    """Return percentiles of all samples, with intervals by the cluster bootstrap.

    Samples of one turn are taken in quick succession and resemble each other, so whole
    turns are drawn with replacement (Davison and Hinkley, Bootstrap Methods and their
    Application, 1997, section 3.8).

    Args:
        turns: the samples of each turn, at least one in all.
    """
    filled = [np.asarray(turn, float) for turn in turns if len(turn)]
    if not filled:
        raise ValueError("there are no samples")
    values = np.quantile(np.concatenate(filled), shares)
    if len(filled) < LEAST_FOR_INTERVAL:
        return [Estimate(float(value), None, None) for value in values]
    columns = _draw_percentiles(filled, shares).T
    return list(map(_estimate, values, columns))


def _estimate(value: float, drawn: Array) -> Estimate:
    low, high = _interval(drawn)
    return Estimate(float(value), low, high)


def _draw_percentiles(turns: Sequence[Array], shares: Sequence[float]) -> Array:
    """Return the percentiles [resample, share] of random selections of turns."""
    random = np.random.default_rng(SEED)
    drawn = np.empty((RESAMPLES, len(shares)))
    for row in drawn:
        picks = random.integers(0, len(turns), len(turns))
        samples = np.concatenate([turns[index] for index in picks])
        row[:] = np.quantile(samples, shares)
    return drawn


def time_ratio(times: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Return the geometric mean of ``times / reference`` by round.

    Its interval is by the bootstrap over rounds. Both were measured in the same rounds,
    right after each other, so whatever slowed a round down slowed down both. A median
    would jump if runs are sometimes fast and sometimes slow in about as many rounds
    each. A geometric mean gives the same ranking whichever of the two is the reference
    (Fleming and Wallace, Communications of the ACM 29, 1986, pages 218-221).
    """
    ratios = np.asarray(times, float) / np.asarray(reference, float)
    return bootstrap(ratios, _geometric_mean)


def bootstrap(values: Array, statistic: Callable[..., Array]) -> Estimate:
    """Return a statistic of independent values [n] with its percentile interval.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.

    Args:
        statistic: such as ``np.mean``; takes the keyword ``axis``.
    """
    value = float(statistic(values, axis=0))
    if len(values) < LEAST_FOR_INTERVAL:
        return Estimate(value, None, None)
    drawn = statistic(values[_draws(len(values))], axis=1)
    return _estimate(value, drawn)


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
    tail = sum(math.comb(number, count) for count in range(min(gains, losses) + 1))
    return min(1.0, 2 * tail / (1 << number))


def least_provable_loss(alpha: float = 0.05) -> int:
    """Return the fewest losses, without a gain, that are significant.

    That is, for which :func:`mcnemar_exact` falls below ``alpha``.
    """
    losses = 1
    while mcnemar_exact(0, losses) >= alpha:
        losses += 1
    return losses


def paired_permutation(differences: Sequence[float]) -> tuple[Estimate, float]:
    """Return the mean of paired differences, and its two-sided p.

    The mean has its bootstrap interval. If it is chance, each difference could as well
    have had the other sign: p is the share of all such changes of sign whose mean is at
    least as far from 0 (Fisher, The Design of Experiments, 1935, section 21). With many
    differences, random changes are drawn and 1 is added to both counts (Davison and
    Hinkley, formula 4.11).
    """
    values = np.asarray(differences, float)
    return bootstrap(values, np.mean), _permutation_p(values)


def _permutation_p(values: Array) -> float:
    """Return the share of changes of sign with at least as extreme a sum."""
    sums = np.abs(_signs(len(values)) @ values)
    rounding = 1e-9 * float(np.abs(values).sum())
    observed = abs(float(values.sum())) - rounding
    extreme_count = int(np.count_nonzero(sums >= observed))
    if len(values) > MAX_EXACT:
        return (1 + extreme_count) / (1 + len(sums))
    return extreme_count / len(sums)


def _signs(number: int) -> Array:
    """Return rows of -1 and 1, all or random ones."""
    if number > MAX_EXACT:
        return np.random.default_rng(SEED).choice([-1.0, 1.0], (FLIPS, number))
    bits = np.arange(1 << number)[:, None] >> np.arange(number) & 1
    return 1.0 - 2.0 * bits


def wilson(successes: int, number: int) -> Estimate:
    """Return a share with its score interval.

    Wilson, Journal of the American Statistical Association 22, 1927, 209-212.
    """
    z = 1.959964
    share = successes / number
    divisor = 1 + z * z / number
    middle = (share + z * z / (2 * number)) / divisor
    variance = share * (1 - share) / number + z * z / (4 * number * number)
    half = z / divisor * math.sqrt(variance)
    # Rounding may put the share itself outside.
    low = min(share, max(0.0, middle - half))
    high = max(share, min(1.0, middle + half))
    return Estimate(share, low, high)


def _geometric_mean(values: Array, axis: int) -> Array:
    mean: Array = np.exp(np.log(values).mean(axis=axis))
    return mean


def _draws(number: int) -> Array:
    return np.random.default_rng(SEED).integers(0, number, (RESAMPLES, number))


def _interval(drawn: Array) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
