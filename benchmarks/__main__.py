"""``make bench``: runs the benchmarks and prints a table. ``make bench ONLY=H1,R1`` runs some of them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks import cold_start, http_overhead, memory, pictures
from benchmarks.samples import Comparison

BENCHMARKS = {"H1": http_overhead.run, "R1": memory.run, "C1": cold_start.run, "I1": pictures.run}


def main() -> int:
    """Run, print, write the raw samples."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--only", default=os.environ.get("ONLY", ""), help="benchmarks to run, such as H1,R1")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks.json"), help="where raw samples go")
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name] or list(BENCHMARKS)
    unknown = set(chosen) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    comparisons = [comparison for name in chosen for comparison in BENCHMARKS[name]()]
    print_table(comparisons)
    write_samples(options.output, comparisons)
    return 0


def print_table(comparisons: list[Comparison]) -> None:
    """One line a comparison: medians, their ratio, the goal and whether it is met."""
    print(f"\n{'':5}{'what':44}{'ours':>12}{'floor':>12}{'ratio':>8}{'goal':>8}")
    for item in comparisons:
        verdict = "met" if item.ratio <= item.goal else "MISSED"
        print(
            f"{item.name:5}{item.what:44}{item.ours_median:>9.1f} {item.unit:2}{item.floor_median:>9.1f} {item.unit:2}"
            f"{item.ratio:>8.2f}{item.goal:>8.2f}  {verdict}"
        )


def write_samples(path: Path, comparisons: list[Comparison]) -> None:
    """Everything that was measured, with the machine it was measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"platform": platform.platform(), "python": sys.version, "cores": os.cpu_count()},
        "comparisons": [item.to_json() for item in comparisons],
    }
    path.write_text(json.dumps(content))
    print(f"\nraw samples: {path}")


if __name__ == "__main__":
    sys.exit(main())
