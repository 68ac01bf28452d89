"""Estimates with intervals, and tests of whether a difference is chance. All are deterministic: the seed is fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array

RESAMPLES = 1000
FLIPS = 4000
MAX_EXACT = 12
"""Paired differences whose signs are changed in every way; of more, in :data:`FLIPS` random ones."""

CONFIDENCE = 0.95
LEAST_FOR_INTERVAL = 6
"""Turns or samples that an interval takes: between the ends of fewer, a median lies in less than 95 of 100 cases."""

SEED = 15


class Estimate(NamedTuple):
    """A number with the ends of its 95 % interval; they are None where too little was measured for one."""

    value: float
    low: float | None
    high: float | None


def percentiles(
    turns: Sequence[Sequence[float]], shares: Sequence[float] = (0.5, 0.9, 0.99)
) -> list[Estimate]:
    """Return percentiles of all samples, with intervals by the cluster bootstrap.

    Samples of one turn were taken one right after the other and resemble each other, so that whole turns are drawn with
    replacement (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8).

    Args:
        turns: the samples of each turn, at least one in all.
    """
    filled = [np.asarray(turn, float) for turn in turns if len(turn)]
    if not filled:
        raise ValueError("there are no samples")
    values = np.quantile(np.concatenate(filled), shares)
    if len(filled) < LEAST_FOR_INTERVAL:
        return [Estimate(float(value), None, None) for value in values]
    random = np.random.default_rng(SEED)
    drawn = np.empty((RESAMPLES, len(shares)))
    for row in drawn:
        picks = random.integers(0, len(filled), len(filled))
        row[:] = np.quantile(np.concatenate([filled[index] for index in picks]), shares)
    return [
        Estimate(float(v), *_interval(column))
        for v, column in zip(values, drawn.T, strict=True)
    ]


def time_ratio(times: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Return the geometric mean of ``times / reference`` by round, with its interval by the bootstrap over rounds.

    Both were measured in the same rounds, right after each other: what slowed one round down slowed down both. A median
    would jump where a run is now fast, now slow, in about as many rounds each. A geometric mean ranks alike whichever
    of the two is the reference (Fleming and Wallace, Communications of the ACM 29, 1986, pages 218-221).
    """
    ratios = np.asarray(times, float) / np.asarray(reference, float)
    return bootstrap(ratios, _geometric_mean)


def bootstrap(values: Array, statistic: Callable[..., Array]) -> Estimate:
    """Return a statistic of independent values [n] with its percentile interval.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.

    Args:
        statistic: such as ``np.mean``; takes the keyword ``axis``.
    """
    if len(values) < LEAST_FOR_INTERVAL:
        return Estimate(float(statistic(values, axis=0)), None, None)
    drawn = statistic(values[_draws(len(values))], axis=1)
    return Estimate(float(statistic(values, axis=0)), *_interval(drawn))


def mcnemar_exact(gains: int, losses: int) -> float:
    """Return the two-sided p of two classifiers being equally good, from the samples on which just one is right.

    The exact conditional form: the discordant pairs fall either way with probability 1/2 (McNemar, Psychometrika 12,
    1947, pages 153-157; Fagerland, Lydersen and Laake, BMC Medical Research Methodology 13:91, 2013, formula 2).

    Args:
        gains: samples that only the new one has right.
        losses: samples that only the old one has right.
    """
    number = gains + losses
    tail = sum(math.comb(number, count) for count in range(min(gains, losses) + 1))
    return min(1.0, 2 * tail / (1 << number))


def least_provable_loss(alpha: float = 0.05) -> int:
    """Return how many samples must be lost, and none gained, before :func:`mcnemar_exact` falls below ``alpha``."""
    return next(losses for losses in range(1, 64) if mcnemar_exact(0, losses) < alpha)


def paired_permutation(differences: Sequence[float]) -> tuple[Estimate, float]:
    """Return the mean of paired differences with its bootstrap interval, and the two-sided p of them being chance.

    If they are, each could as well have had the other sign: p is the share of all such changes of signs whose mean is
    at least as far from 0 (Fisher, The Design of Experiments, 1935, section 21). Of many differences random changes are
    taken, with one more in both counts (Davison and Hinkley, formula 4.11).
    """
    values = np.asarray(differences, float)
    sums = np.abs(_signs(len(values)) @ values)
    observed = abs(float(values.sum()))
    extreme_count = int(
        np.count_nonzero(sums >= observed - 1e-9 * float(np.abs(values).sum()))
    )
    p = (
        extreme_count / len(sums)
        if len(values) <= MAX_EXACT
        else (1 + extreme_count) / (1 + len(sums))
    )
    return bootstrap(values, np.mean), p


def _signs(number: int) -> Array:
    """Return rows of -1 and 1: all that there are, or random ones where those would be many."""
    if number > MAX_EXACT:
        return np.random.default_rng(SEED).choice([-1.0, 1.0], (FLIPS, number))
    return 1.0 - 2.0 * (np.arange(1 << number)[:, None] >> np.arange(number) & 1)


def wilson(successes: int, number: int) -> Estimate:
    """Return a share with its interval (Wilson, Journal of the American Statistical Association 22, 1927, 209-212)."""
    z = 1.959964
    share = successes / number
    middle = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = (
        z
        / (1 + z * z / number)
        * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    )
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Estimate(
        share, min(low, share), max(high, share)
    )  # which rounding may put outside


def _geometric_mean(values: Array, axis: int) -> Array:
    mean: Array = np.exp(np.log(values).mean(axis=axis))
    return mean


def _draws(number: int) -> Array:
    return np.random.default_rng(SEED).integers(0, number, (RESAMPLES, number))


def _interval(drawn: Array) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
