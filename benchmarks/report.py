"""The printed table, and the file of all measurements."""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.processes import cores, pinning
from benchmarks.samples import (
    Comparison,
    Curve,
    Growth,
    Imports,
    Missing,
    Result,
    summary,
)
from pocketserve.messages import plural

SLOWEST = 10
"""Modules whose import is printed."""

P99_LEAST = 200
"""The least number of samples for a 99th percentile."""

VERSIONS = ("numpy", "flask", "waitress", "ai-edge-litert")


def show(results: Sequence[Result]) -> None:
    """Print the machine, comparisons, growth and goals."""
    _show_machine()
    heads = (
        f"{'':4}{'what':48}{'ours':>9}{'p99':>9}{'':4}  "
        f"{'against':34}{'median':>9}{'p99':>9}{'':4}"
    )
    print(f"\n{heads}{'ratio':>7}{'goal':>8}")
    for item in results:
        if isinstance(item, Comparison):
            _show_comparison(item)
        elif isinstance(item, Missing):
            reason = item.why[-300:]
            print(f"{item.name:4}{item.what:48}{'—':>9}  not measured: {reason}")
    for item in results:
        if isinstance(item, Growth):
            _show_growth(item)
        elif isinstance(item, Curve):
            _show_curve(item)
        elif isinstance(item, Imports):
            _show_imports(item)
    _show_goals(results)


def _show_machine() -> None:
    here = machine()
    processor = here["processor"] or here["platform"]
    print(f"\n{processor}, {plural(here['cores'], 'core')}; {here['pinning']}")
    print(
        f"Python {platform.python_version()}, {here['platform']}; "
        f"load before the first benchmark {here['load']:.2f}"
    )


def _show_growth(item: Growth) -> None:
    print(
        f"{item.name:4}{item.what}: {item.slope:.4g} {item.unit} per {item.per}, "
        f"from {item.start:.4g} {item.unit} "
        f"(R² {item.r2:.3f}, {len(item.points)} points{_steepest(item)})"
    )


def _show_curve(item: Curve) -> None:
    texts = []
    for point, median in zip(item.points, item.medians, strict=True):
        texts.append(f"{point:g}: {median:.0f}")
    print(f"{item.name:4}{item.side} by {item.axis}, {item.unit}: {', '.join(texts)}")


def _show_goals(results: Sequence[Result]) -> None:
    verdicts = [item.verdict for item in results if isinstance(item, Comparison)]
    missing = sum(isinstance(item, Missing) for item in results)
    print(
        f"\ngoals: {verdicts.count('met')} met, {verdicts.count('MISSED')} missed; "
        f"not measured: {missing}"
    )


def _steepest(item: Growth) -> str:
    """Return the steepest growth: 1 is linear, 2 quadratic."""
    step = item.steepest
    if step is None:
        return ""
    begin, end, power = step
    return f"; steepest step {begin:.3g} to {end:.3g}: to the power of {power:.2f}"


def _show_comparison(item: Comparison) -> None:
    sign = {"most": "≤", "least": "≥", "faster": "≥"}[item.rule]
    goal = "" if item.goal is None else f"{sign} {item.goal:g}"
    what = (
        item.what if item.statistic == "median" else f"{item.what} ({item.statistic})"
    )
    print(
        f"{item.name:4}{what:48}{item.ours_median:>9.1f}{_p99(item, item.ours)} {item.unit:3}  {item.against:34}"
        f"{item.floor_median:>9.1f}{_p99(item, item.floor)} {item.unit:3}{item.ratio:>7.2f}{goal:>8}  {item.verdict}"
    )


def _p99(item: Comparison, samples: Sequence[float]) -> str:
    """Return the 99th percentile, if there are enough samples."""
    if item.statistic != "median" or len(samples) < P99_LEAST:
        return f"{'':9}"
    return f"{summary(samples, 'p99'):>9.1f}"


def _show_imports(item: Imports) -> None:
    ours, own, floor = (
        sum(times.values()) / 1e3 for times in (item.ours, item.own, item.floor)
    )
    print(
        f"{item.name:4}imports: {ours:.1f} ms for {len(item.ours)} modules, {own:.1f} ms of it for {len(item.own)} of "
        f"our own, the slowest below; the script's {floor:.1f} ms for {len(item.floor)}"
    )
    for module, taken in list(item.own.items())[:SLOWEST]:
        print(f"{'':4}{taken / 1e3:>8.2f} ms  {module}")


def write(path: Path, results: Sequence[Result]) -> None:
    """Everything that was measured, with the machine it was measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "results": [item.to_json() for item in results],
    }
    path.write_text(json.dumps(content), encoding="utf-8")


@functools.cache
def machine() -> dict[str, Any]:
    """Describe the machine, as first measured.

    A load above 0 means that other programs were running.
    """
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "python": sys.version,
        "versions": {name: _version(name) for name in VERSIONS},
        "cores": os.cpu_count(),
        "usable_cores": cores(),
        "pinning": pinning(),
        "load": os.getloadavg()[0],
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (
            line.split(":", 1)[1].strip()
            for line in lines
            if line.startswith("model name")
        ),
        "",
    )
