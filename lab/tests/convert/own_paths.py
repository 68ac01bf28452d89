"""The paths by which ``test_own_models.py`` converts, and the faults of their outcomes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from pocketserve_lab.convert.converter import KINDS, QUANTIZE_MODES, ConversionError
from pocketserve_lab.convert.plan import plans_for
from pocketserve_lab.convert.registry import converters

RIGHT, WRITTEN = "right", "written"
WAY_OUT = re.compile(r"; (?:try|use|declare|export|rename|change)\b")
SUGGESTION = re.compile(r"--to (\w+)(?: --quantize (\w+))?")


class Way(NamedTuple):
    """A kind and a mode."""

    kind: str
    mode: str

    def __str__(self) -> str:
        return self.kind if self.mode == "none" else f"{self.kind}-{self.mode}"


def ways_from(source: str, mode: str) -> list[Way]:
    """Return all paths from a format with a mode."""
    ways = []
    for kind in KINDS:
        try:
            plans_for(source, kind, mode, converters())
        except ConversionError:
            continue
        ways.append(Way(kind, mode))
    return ways


def fault(outcome: str, outcomes: Mapping[str, str], source: str) -> str:
    """Return the fault of an outcome; empty without one.

    Args:
        outcomes: those of all paths that were run, by path.
        source: the original's format.
    """
    if outcome.startswith((RIGHT, WRITTEN)):
        return ""
    if not outcome.startswith("refused: "):
        return outcome
    if not WAY_OUT.search(outcome):
        return f"no way out: {outcome}"
    suggested = []
    for kind, mode in SUGGESTION.findall(outcome.rpartition("; try ")[2]):
        suggested.append(Way(kind, mode or "none"))
    if suggested and not any(_may_work(way, outcomes, source) for way in suggested):
        return f"no suggested path works: {outcome}"
    return ""


def _may_work(way: Way, outcomes: Mapping[str, str], source: str) -> bool:
    """Return whether a path worked, or exists and was not run yet."""
    outcome = outcomes.get(str(way))
    if outcome is not None:
        return outcome.startswith((RIGHT, WRITTEN))
    return way.mode in QUANTIZE_MODES and way in ways_from(source, way.mode)
