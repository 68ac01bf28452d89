"""Samples of two sides that were measured in turn, and what is said of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """One benchmark's result.

    Attributes:
        name: the goal's name, such as H1.
        goal: the largest ratio of medians, ours to the floor's, that meets it.
    """

    name: str
    what: str
    unit: str
    ours: list[float]
    floor: list[float]
    goal: float

    @property
    def ours_median(self) -> float:
        """Median of our samples."""
        return statistics.median(self.ours)

    @property
    def floor_median(self) -> float:
        """Median of the floor's samples."""
        return statistics.median(self.floor)

    @property
    def ratio(self) -> float:
        """How many times the floor we take."""
        return self.ours_median / self.floor_median

    def to_json(self) -> dict[str, Any]:
        """The result with its raw samples."""
        return {**vars(self), "ratio": self.ratio}
