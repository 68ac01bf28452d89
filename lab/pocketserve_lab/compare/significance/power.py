"""The loss that data can show: by 80 % power, given what was seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.compare.significance.distributions import (
    BISECTIONS,
    NORMAL,
    binomial,
    t_quantile,
)

POWER = 0.8
MAX_EXACT_FLIPS = 500
"""With more expected flips, the normal distribution is exact to one point."""

NEGLIGIBLE = 1e-9
LOSS_BISECTIONS = 20
MAX_STEPS = 1e6
NO_SPREAD = 1e-12
"""Up to this share of the scale, a deviation is due to rounding."""


def provable_loss(number: int, flips: int, alpha: float) -> float | None:
    """Return the loss of accuracy that McNemar's exact test finds in 80 of 100 cases.

    The share of flips, gained or lost, is taken to be the one seen, or the loss itself
    if that is larger.

    Args:
        number: samples.
        flips: those that exactly one of both versions got right.
        alpha: of the two-sided test.

    Returns:
        a share of the samples; None if not even losing all of them would show.
    """

    def power(loss: float) -> float:
        return mcnemar_power(number, flips / number, loss, alpha)

    return _least(power)


def _least(power: Callable[[float], float]) -> float | None:
    """Return the least loss with enough power."""
    if power(1.0) < POWER:
        return None
    low, high = 0.0, 1.0
    for _ in range(LOSS_BISECTIONS):
        middle = (low + high) / 2
        if power(middle) < POWER:
            low = middle
        else:
            high = middle
    return high


def mcnemar_power(number: int, flips: float, loss: float, alpha: float) -> float:
    """Return how often McNemar's exact test finds a loss.

    Args:
        flips: the true share of samples that flip; at least the loss is taken.
        loss: the true loss, a share of the samples, above 0.
    """
    flips = max(flips, loss)
    if number * flips > MAX_EXACT_FLIPS:
        return _normal_power(number, flips, loss, alpha)
    lost_share = (flips + loss) / (2 * flips)
    probabilities = binomial(number, flips)
    total = 0.0
    for count in np.flatnonzero(probabilities > NEGLIGIBLE).tolist():
        least = _critical(count, alpha)
        tail = float(binomial(count, lost_share)[least:].sum())
        total += float(probabilities[count]) * tail
    return total


def _normal_power(number: int, flips: float, loss: float, alpha: float) -> float:
    """Return the power for many flips (Connor, Biometrics 43, 1987, 207-211)."""
    bound = NORMAL.inv_cdf(1 - alpha / 2) * math.sqrt(number * flips)
    deviation = math.sqrt(max(number * (flips - loss * loss), 1e-12))
    return NORMAL.cdf((number * loss - bound) / deviation)


@lru_cache(maxsize=10_000)
def _critical(flips: int, alpha: float) -> int:
    """Return the fewest losses among so many flips that are significant."""
    tails: Array = np.cumsum(binomial(flips, 0.5)[::-1])[::-1]
    significant = np.flatnonzero(2 * tails < alpha)
    if len(significant) == 0:
        return flips + 1
    return int(significant[0])


def provable_disagreement(number: int, bound: float, alpha: float) -> float | None:
    """Return the share of differing answers found in 80 of 100 cases.

    Args:
        bound: the share of equal answers that the exact binomial test is against.
        alpha: of the two-sided test.
    """
    tails = np.cumsum(binomial(number, bound))
    significant = np.flatnonzero(2 * tails < alpha)
    if len(significant) == 0:
        return None
    most = int(significant[-1])

    def power(differing: float) -> float:
        return float(binomial(number, 1 - differing)[: most + 1].sum())

    return _least(power)


def provable_mean(
    differences: Sequence[float], alpha: float, scale: float = 1.0
) -> float | None:
    """Return the change of a mean that a t test finds in 80 of 100 cases.

    The spread seen is an estimate, too, so the power is the mean over its errors.

    Args:
        differences: as seen; their spread decides.
        alpha: of the two-sided test.
        scale: the size that a loss is relative to.

    Returns:
        None without a spread, which tells nothing of other samples.
    """
    number = len(differences)
    if number < 2:
        return None
    deviation = float(np.std(differences, ddof=1))
    if deviation <= NO_SPREAD * scale:
        return None
    steps = _provable_steps(number, t_quantile(1 - alpha / 2, number - 1))
    return steps * deviation / math.sqrt(number)


def _provable_steps(number: int, bound: float) -> float:
    """Return the standard errors that exceed the bound in 80 of 100 cases."""
    bias = _deviation_bias(number)
    steps = bound
    for _ in range(BISECTIONS):
        variance = 1 + (steps * steps + bound * bound) * (1 - bias * bias)
        distance = NORMAL.inv_cdf(POWER) * math.sqrt(variance) / bias
        steps = min(bound + distance, MAX_STEPS)
    return steps


def _deviation_bias(number: int) -> float:
    """Return the mean of a normal sample's deviation as a share of the true one."""
    logarithm = math.lgamma(number / 2) - math.lgamma((number - 1) / 2)
    return math.sqrt(2 / (number - 1)) * math.exp(logarithm)
