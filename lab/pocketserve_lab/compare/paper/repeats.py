"""The whole protocol several times, and the spread of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pocketserve_lab.compare.recommend import two_digits
from pocketserve_lab.compare.session import Plan, Progress, compare_versions


def compare_repeatedly(plan: Plan, number: int, progress: Progress) -> dict[str, Any]:
    """Compare several times; return the first result with the ``repeats``.

    Each run starts new processes and loads every version anew.
    """
    runs = []
    for place in range(number):
        title = "" if number == 1 else f"run {place + 1} of {number}: "
        runs.append(compare_versions(plan, partial(_show, progress, title)))
    return combine_runs(runs)


def _show(progress: Progress, prefix: str, title: str, share: float) -> None:
    progress(prefix + title, share)


def combine_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the first result with the spread over all."""
    result = dict(runs[0])
    if len(runs) == 1:
        return result
    spread = {}
    for name in result["versions"]:
        spread[name] = _spread(runs, name)
    recommended = [run["recommendation"]["version"] for run in runs]
    result["repeats"] = {
        "number": len(runs),
        "recommended": recommended,
        "spread": spread,
        "runs": list(map(dict, runs)),
    }
    sentence = _sentence(recommended, spread)
    recommendation = dict(result["recommendation"])
    recommendation["sentences"] += f" {sentence}"
    result["recommendation"] = recommendation
    return result


def _spread(runs: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the figures of a version in each run in which it worked."""
    figures = {}
    for key, figure in FIGURES.items():
        values = []
        for run in runs:
            if name in run["versions"]:
                values.append(figure(run["versions"][name]))
        figures[key] = _ends(values)
    return figures


def _ends(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return the values with the least and the largest; None without any."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return {"values": numbers, "low": min(numbers), "high": max(numbers)}


def _run_p50(facts: Mapping[str, Any]) -> float | None:
    value: float = facts["run_ms"]["p50"]["value"]
    return value


def _score(facts: Mapping[str, Any]) -> float | None:
    if facts["accuracy"] is None:
        return None
    value: float = facts["accuracy"]["value"]
    return value


def _memory(facts: Mapping[str, Any]) -> float | None:
    size: float | None = facts["memory_bytes"]["private"]
    return size


FIGURES: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "run_p50_ms": _run_p50,
    "score": _score,
    "private_bytes": _memory,
}


def _sentence(recommended: Sequence[str | None], spread: Mapping[str, Any]) -> str:
    """Return how far the runs agree."""
    first = recommended[0]
    number = len(recommended)
    text = f"{recommended.count(first)} of {number} runs recommend {first or 'none'}"
    if first is not None:
        times = spread[first]["run_p50_ms"]
        low, high = two_digits(times["low"]), two_digits(times["high"])
        text += f", whose p50 was {low} to {high} ms"
    return f"{text}; the other figures are those of the first run."
