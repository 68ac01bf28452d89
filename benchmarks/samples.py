"""Interleaved samples of two sides, and their statistics."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """One benchmark's result.

    Attributes:
        name: the goal's name, such as H1.
        ours, floor: samples in ``unit``; a limit that is no measurement is a floor of one sample.
        goal: for the ratio; None only reports.
        rule: ``most``: ours / floor must not exceed the goal. ``faster``: floor / ours must reach it.
            ``least``: ours / floor must reach it.
        against: the title of the floor.
        statistic: ``median`` or ``p99``, of both sides.
    """

    name: str
    what: str
    unit: str
    ours: list[float]
    floor: list[float]
    goal: float | None
    rule: str = "most"
    against: str = "floor"
    statistic: str = "median"

    @property
    def ours_median(self) -> float:
        """Return our samples' median."""
        return summary(self.ours, self.statistic)

    @property
    def floor_median(self) -> float:
        """Return the floor's median."""
        return summary(self.floor, self.statistic)

    @property
    def ratio(self) -> float:
        """Return our time relative to the floor's, or the inverse."""
        ours = self.ours_median
        floor = self.floor_median
        if self.rule == "faster":
            return floor / ours
        return ours / floor

    @property
    def verdict(self) -> str:
        """``met``, ``MISSED``, or nothing where there is no goal."""
        if self.goal is None:
            return ""
        met = (
            self.ratio <= self.goal if self.rule == "most" else self.ratio >= self.goal
        )
        if met:
            return "met"
        return "MISSED"

    def to_json(self) -> dict[str, Any]:
        """The result with its raw samples, and their percentiles."""
        found = {
            "kind": "comparison",
            **vars(self),
            "ratio": self.ratio,
            "verdict": self.verdict,
        }
        return {
            **found,
            "percentiles": {
                "ours": percentiles(self.ours),
                "floor": percentiles(self.floor),
            },
        }


@dataclass(frozen=True)
class Missing:
    """A comparison that could not be made here, and why."""

    name: str
    what: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """The statement."""
        return {"kind": "missing", **vars(self)}


@dataclass(frozen=True)
class Curve:
    """One side's samples along an axis, for the plots.

    Attributes:
        axis: ``payload`` (bytes) or ``connections``.
        samples: for each point the samples in ``unit``.
        rate: for each point requests per second, where they were counted.
    """

    name: str
    side: str
    axis: str
    unit: str
    points: list[float]
    samples: list[list[float]]
    rate: list[float] = field(default_factory=list)

    @property
    def medians(self) -> list[float]:
        """The median at each point."""
        return [statistics.median(kept) for kept in self.samples]

    def to_json(self) -> dict[str, Any]:
        """Return raw samples and percentiles at each point."""
        return {
            "kind": "curve",
            **vars(self),
            "percentiles": [percentiles(kept) for kept in self.samples],
        }


@dataclass(frozen=True)
class Growth:
    """A straight line through measurements.

    Attributes:
        unit: of the values; the slope is in ``unit`` per ``per``.
        r2: share of the variation that the line explains; near 1 the growth is linear.
    """

    name: str
    what: str
    unit: str
    per: str
    points: list[float]
    values: list[float]
    slope: float
    start: float
    r2: float

    def to_json(self) -> dict[str, Any]:
        """Return the line and its measurements."""
        return {"kind": "growth", **vars(self), "steepest": self.steepest}

    @property
    def steepest(self) -> tuple[float, float, float] | None:
        """Return the step with the fastest growth, and its power.

        A power of 1 is proportional; a fixed cost lowers it. None if values aren't positive.
        """
        if min(self.points) <= 0 or min(self.values) <= 0 or len(self.points) < 2:
            return None
        pairs = sorted(zip(self.points, self.values, strict=True))
        return max(
            (
                (one, other, math.log(higher / lower) / math.log(other / one))
                for (one, lower), (other, higher) in itertools.pairwise(pairs)
            ),
            key=lambda step: step[2],
        )


@dataclass(frozen=True)
class Imports:
    """Microseconds of each module until the first answer.

    Attributes:
        own: the part of ``ours`` that is of our own packages, the slowest first.
    """

    name: str
    ours: dict[str, int]
    floor: dict[str, int]
    own: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Every module of both sides."""
        return {"kind": "imports", **vars(self)}


Result = Comparison | Missing | Curve | Growth | Imports


def summary(samples: Sequence[float], statistic: str) -> float:
    """The median or another percentile such as ``p99``."""
    if statistic == "median":
        return statistics.median(samples)
    ordered = sorted(samples)
    share = float(statistic.removeprefix("p")) / 100
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """Return the most useful percentiles."""
    return {name: summary(samples, name) for name in ("p50", "p90", "p99")} | {
        "samples": len(samples)
    }


def growth(
    name: str,
    what: str,
    unit: str,
    per: str,
    points: Sequence[float],
    values: Sequence[float],
) -> Growth:
    """Fit a straight line by least squares."""
    slope, start = statistics.linear_regression(points, values)
    mean = statistics.fmean(values)
    spread = sum((value - mean) ** 2 for value in values)
    left = sum(
        (value - start - slope * point) ** 2
        for point, value in zip(points, values, strict=True)
    )
    r2 = 1.0
    if spread:
        r2 = 1 - left / spread
    return Growth(name, what, unit, per, list(points), list(values), slope, start, r2)
