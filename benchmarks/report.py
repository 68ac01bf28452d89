"""The table that is printed, and the file with everything that was measured."""

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
"""Samples from which a 99th percentile is printed."""

VERSIONS = ("numpy", "flask", "waitress", "ai-edge-litert")


def show(results: Sequence[Result]) -> None:
    """The machine, one line a comparison, what is missing, what grows with what, and how many goals are met."""
    here = machine()
    print(
        f"\n{here['processor'] or here['platform']}, {plural(here['cores'], 'core')}; {here['pinning']}"
    )
    print(
        f"Python {platform.python_version()}, {here['platform']}; load before the first benchmark {here['load']:.2f}"
    )
    heads = f"{'':4}{'what':48}{'ours':>9}{'p99':>9}{'':4}  {'against':34}{'median':>9}{'p99':>9}{'':4}"
    print(f"\n{heads}{'ratio':>7}{'goal':>8}")
    for item in results:
        if isinstance(item, Comparison):
            _show_comparison(item)
        elif isinstance(item, Missing):
            print(
                f"{item.name:4}{item.what:48}{'—':>9}  not measured: {item.why[-300:]}"
            )
    for item in results:
        if isinstance(item, Growth):
            print(
                f"{item.name:4}{item.what}: {item.slope:.4g} {item.unit} per {item.per}, from {item.start:.4g} "
                f"{item.unit} (R² {item.r2:.3f}, {len(item.points)} points{_steepest(item)})"
            )
        elif isinstance(item, Curve):
            medians = ", ".join(
                f"{p:g}: {m:.0f}"
                for p, m in zip(item.points, item.medians, strict=True)
            )
            print(f"{item.name:4}{item.side} by {item.axis}, {item.unit}: {medians}")
        elif isinstance(item, Imports):
            _show_imports(item)
    verdicts = [
        item.verdict
        for item in results
        if isinstance(item, Comparison) and item.verdict
    ]
    missing = sum(isinstance(item, Missing) for item in results)
    print(
        f"\ngoals: {verdicts.count('met')} met, {verdicts.count('MISSED')} missed; not measured: {missing}"
    )


def _steepest(item: Growth) -> str:
    """Return where it grows most against a line through zero: 1 is in proportion, 2 is with the square."""
    step = item.steepest
    return (
        ""
        if step is None
        else f"; steepest step {step[0]:.3g} to {step[1]:.3g}: to the power of {step[2]:.2f}"
    )


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
    """Beside a median, where there are samples enough for one in a hundred to be more than the worst."""
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
    """Return what the numbers depend on, as it was when this was asked first.

    A load above 0 means that somebody else was working too.
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
