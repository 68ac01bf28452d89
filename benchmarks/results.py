"""A whole run as a page: ``python -m benchmarks.results build/benchmarks.json docs/generated/benchmark-results.md``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import P99_LEAST
from benchmarks.samples import Comparison, Growth, summary
from pocketserve.messages import plural

KEYS = ("name", "what", "unit", "ours", "floor", "goal", "rule", "against", "statistic")
GROWTH_KEYS = (
    "name",
    "what",
    "unit",
    "per",
    "points",
    "values",
    "slope",
    "start",
    "r2",
)
HEAD = """# All rows of the last whole run

Written by `make plots` from `build/benchmarks.json`; [benchmarks.md](../benchmarks.md) says how to read it.
Medians, and 99th percentiles where there are {least} samples or more.

{when}, {machine}.
"""


def main(source: Path, target: Path) -> int:
    """Write the page."""
    content = json.loads(source.read_text(encoding="utf-8"))
    target.write_text("\n".join(page(content)) + "\n", encoding="utf-8")
    print(target)
    return 0


def page(content: dict[str, Any]) -> Iterator[str]:
    """Return the page's lines from the report's file."""
    here = content["machine"]
    results = content["results"]
    system = here["platform"].partition("-")[0]
    python = here["python"].partition(" ")[0]
    machine = f"{here['processor'] or 'unknown processor'}, {plural(here['cores'], 'core')}, {system}, Python {python}"
    yield HEAD.format(when=content["time"], machine=machine, least=P99_LEAST)
    yield from _table(
        "name, what, ours, p99, against, median, p99, ratio, goal, ",
        (
            _comparison(Comparison(**{key: item[key] for key in KEYS}))
            for item in _of(results, "comparison")
        ),
    )
    missing = _of(results, "missing")
    if missing:
        yield "\n## Not measured\n"
        yield from _table(
            "name, what, why",
            ([item["name"], item["what"], item["why"]] for item in missing),
        )
    yield "\n## What grows with what\n"
    yield "A fit of 1 is a straight line. The power says how a cost grows at its steepest step: up to 1 is no worse"
    yield "than linear. Where a floor bends at the same step, it is the machine's memory that does.\n"
    yield from _table(
        "name, what, each, from, fit, steepest step, power",
        (
            _growth(Growth(**{key: item[key] for key in GROWTH_KEYS}))
            for item in _of(results, "growth")
        ),
    )


def _of(results: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in results if item["kind"] == kind]


def _table(heads: str, rows: Iterable[list[str]]) -> Iterator[str]:
    names = heads.split(", ")
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _comparison(item: Comparison) -> list[str]:
    what = (
        item.what if item.statistic == "median" else f"{item.what} ({item.statistic})"
    )
    goal = (
        ""
        if item.goal is None
        else f"{'≤' if item.rule == 'most' else '≥'} {item.goal:g}"
    )
    ours = _values(item, item.ours, item.ours_median)
    floor = _values(item, item.floor, item.floor_median)
    return [
        item.name,
        what,
        *ours,
        item.against,
        *floor,
        f"{item.ratio:.2f}",
        goal,
        item.verdict,
    ]


def _values(item: Comparison, samples: list[float], value: float) -> list[str]:
    shown = item.statistic == "median" and len(samples) >= P99_LEAST
    return [
        f"{value:,.1f} {item.unit}",
        f"{summary(samples, 'p99'):,.1f}" if shown else "",
    ]


def _growth(item: Growth) -> list[str]:
    step = item.steepest
    steepest = (
        [f"{step[0]:.3g} to {step[1]:.3g}", f"{step[2]:.2f}"] if step else ["", ""]
    )
    each = f"{item.slope:.3g} {item.unit} per {item.per}"
    return [
        item.name,
        item.what,
        each,
        f"{item.start:.3g} {item.unit}",
        f"{item.r2:.3f}",
        *steepest,
    ]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(
            "usage: python -m benchmarks.results build/benchmarks.json docs/generated/benchmark-results.md"
        )
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
