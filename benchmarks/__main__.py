"""``make bench``: runs the benchmarks and prints a table. ``make bench ONLY=H1,R1`` runs some of them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    against_peers,
    cold_start,
    idle,
    java,
    many_models,
    memory,
    model_work,
    overhead,
    overload,
    pictures,
    report,
)
from benchmarks.samples import Missing, Result
from benchmarks.timing import FULL, QUICK, Effort

BENCHMARKS: dict[str, Callable[[Effort], list[Result]]] = {
    "S1": overhead.run_s1,
    "S2": overhead.run_s2,
    "H1": overhead.run_h1,
    "P1": against_peers.run,
    "R1": lambda effort: [*memory.run(effort)],
    "C1": cold_start.run,
    "M1": model_work.run_m1,
    "T1": model_work.run_t1,
    "G1": many_models.run,
    "O1": overload.run,
    "L1": idle.run,
    "J1": java.run,
    "I1": lambda effort: [*pictures.run()],
}


def main() -> int:
    """Run, print, write the raw samples."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--only", default=os.environ.get("ONLY", ""), help="benchmarks to run, such as H1,R1")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks.json"), help="where raw samples go")
    parser.add_argument("--quick", action="store_true", help="a few rounds: to see that it works, not to measure")
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name] or list(BENCHMARKS)
    unknown = set(chosen) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are ended too
    results: list[Result] = []
    for name in chosen:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            results += BENCHMARKS[name](QUICK if options.quick else FULL)
        except Exception as error:  # the other benchmarks are worth their while all the same
            traceback.print_exc()
            results.append(Missing(name, "the benchmark failed", f"{type(error).__name__}: {error}"))
        report.write(options.output, results)  # after each: what was measured is not lost with what follows
    report.show(results)
    print(f"\nraw samples: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
