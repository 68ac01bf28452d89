"""The table that is printed, and the file with everything that was measured."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.samples import Comparison, Curve, Growth, Imports, Missing, Result

SLOWEST = 10
"""Modules whose import is printed."""


def show(results: Sequence[Result]) -> None:
    """One line a comparison, what is missing, then what grows with what."""
    print(f"\n{'':4}{'what':48}{'ours':>13}  {'against':34}{'':>13}{'ratio':>8}{'goal':>10}")
    for item in results:
        if isinstance(item, Comparison):
            _show_comparison(item)
        elif isinstance(item, Missing):
            print(f"{item.name:4}{item.what:48}{'—':>13}  not measured: {item.why[-300:]}")
    for item in results:
        if isinstance(item, Growth):
            print(
                f"{item.name:4}{item.what}: {item.slope:.4g} {item.unit} per {item.per}, from {item.start:.4g} "
                f"{item.unit} (R² {item.r2:.3f}, {len(item.points)} points)"
            )
        elif isinstance(item, Curve):
            medians = ", ".join(f"{p:g}: {m:.0f}" for p, m in zip(item.points, item.medians, strict=True))
            print(f"{item.name:4}{item.side} by {item.axis}, {item.unit}: {medians}")
        elif isinstance(item, Imports):
            _show_imports(item)


def _show_comparison(item: Comparison) -> None:
    sign = {"most": "≤", "least": "≥", "faster": "≥"}[item.rule]
    goal = "" if item.goal is None else f"{sign} {item.goal:g}"
    what = item.what if item.statistic == "median" else f"{item.what} ({item.statistic})"
    print(
        f"{item.name:4}{what:48}{item.ours_median:>9.1f} {item.unit:3}  {item.against:34}{item.floor_median:>9.1f} "
        f"{item.unit:3}{item.ratio:>8.2f}{goal:>10}  {item.verdict}"
    )


def _show_imports(item: Imports) -> None:
    ours, own, floor = (sum(times.values()) / 1e3 for times in (item.ours, item.own, item.floor))
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


def machine() -> dict[str, Any]:
    """What the numbers depend on. A load above 0 means that somebody else was working too."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "python": sys.version,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
