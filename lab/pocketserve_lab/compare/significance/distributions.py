"""Quantiles and tails of Student's t and the binomial distribution.

SciPy has them, but does not install on every phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from pocketserve.tensors import Array

NORMAL = NormalDist()
MAX_EXACT_FREEDOM = 60
"""With more degrees of freedom, an expansion is exact to seven digits."""

BISECTIONS = 60


def t_cdf(value: float, freedom: int) -> float:
    """Return the share of Student's t below a value.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 1964, 26.7.3 and 26.7.4.

    Args:
        freedom: degrees of freedom, at least 1.
    """
    if freedom > MAX_EXACT_FREEDOM:
        return _t_cdf_by_expansion(value, freedom)
    angle = math.atan(value / math.sqrt(freedom))
    cosine = math.cos(angle)
    is_odd = freedom % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for order in range(3 if is_odd else 2, freedom + 1, 2):
        total += term
        term *= (order - 1) / order * cosine * cosine
    within = math.sin(angle) * total
    if is_odd:
        within = 2 / math.pi * (angle + within)
    return 0.5 + within / 2


def _t_cdf_by_expansion(value: float, freedom: int) -> float:
    """Return the share by inverting the quantiles' expansion."""
    low, _ = _bisect(lambda normal: _expanded(normal, freedom) < value, -1e3, 1e3)
    return NORMAL.cdf(low)


def _bisect(
    is_below: Callable[[float], bool], low: float, high: float
) -> tuple[float, float]:
    """Return bounds of the place where a condition ceases to hold."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return low, high


def t_quantile(share: float, freedom: int) -> float:
    """Return the value below which a share of Student's t lies.

    Args:
        share: between 0 and 1, both excluded.
    """
    if freedom > MAX_EXACT_FREEDOM:
        return _expanded(NORMAL.inv_cdf(share), freedom)
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < share and high < 1e12:
        high *= 2
    low, high = _bisect(lambda value: t_cdf(value, freedom) < share, low, high)
    return (low + high) / 2


def _expanded(x: float, freedom: int) -> float:
    """Return a t quantile from a normal one (Abramowitz and Stegun, 26.7.5)."""
    first = (x**3 + x) / 4
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    third = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    return x + first / freedom + second / freedom**2 + third / freedom**3


@lru_cache(maxsize=256)
def _log_factorials(number: int) -> Array:
    """Return the logarithms of 0! to number!."""
    logs = np.log(np.arange(1, number + 1))
    factorials: Array = np.concatenate([[0.0], np.cumsum(logs)])
    return factorials


def binomial(number: int, share: float) -> Array:
    """Return the probabilities of 0 to ``number`` successes."""
    if share <= 0 or share >= 1:
        certain = np.zeros(number + 1)
        certain[number if share >= 1 else 0] = 1.0
        return certain
    factorials = _log_factorials(number)
    counts = np.arange(number + 1)
    choices = factorials[number] - factorials - factorials[::-1]
    odds = counts * math.log(share) + (number - counts) * math.log1p(-share)
    probabilities: Array = np.exp(choices + odds)
    return probabilities
