"""``make bench``: runs the benchmarks and prints a table."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import (
    against_peers,
    arrays,
    batching,
    battery,
    camera,
    cold_start,
    engines,
    fairness,
    idle,
    java,
    language,
    many_models,
    memory,
    model_work,
    overhead,
    overload,
    pictures,
    report,
    revisions,
    throughput,
)
from benchmarks.processes import NotHere
from benchmarks.samples import Missing, Result
from benchmarks.timing import FULL, QUICK, Effort

Benchmark = Callable[[Effort], list[Result]]
Benchmarks = Mapping[str, Benchmark]

BENCHMARKS: Benchmarks = {
    "S1": overhead.run_s1,
    "S2": overhead.run_s2,
    "H1": overhead.run_h1,
    "P1": against_peers.run,
    "R1": lambda effort: [*memory.run(effort)],
    "A1": arrays.run,
    "C1": cold_start.run,
    "M1": model_work.run_m1,
    "T1": model_work.run_t1,
    "B1": batching.run,
    "F1": fairness.run,
    "G1": many_models.run,
    "O1": overload.run,
    "L1": idle.run,
    "J1": java.run,
    "E1": engines.run,
    "I1": lambda effort: [*pictures.run()],
    "V1": camera.run,
    "V2": pictures.run_v2,
    "W1": battery.run,
    "Q1": throughput.run,
    "N1": language.run,
}


def main(
    arguments: Sequence[str] | None = None, benchmarks: Benchmarks = BENCHMARKS
) -> int:
    """Run the benchmarks, print a table, and write raw samples."""
    options = _parser().parse_args(arguments)
    try:
        if options.against:
            benchmarks = revisions.benchmarks(options.against)
        names = choose(options.only, benchmarks)
    except ValueError as error:
        print(f"{error}", file=sys.stderr)
        return 2
    # SystemExit also ends the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    report.machine()  # records the load before ours
    effort = FULL
    if options.quick:
        effort = QUICK
    results: list[Result] = []
    code = 0
    name = ""
    try:
        for number, name in enumerate(names, 1):
            print(f"{name} ({number} of {len(names)}) …", file=sys.stderr, flush=True)
            code = max(code, _run(name, benchmarks[name], effort, results))
            # After each benchmark, so that a crash loses none of the earlier ones.
            report.write(options.output, results)
    except KeyboardInterrupt:
        print(f"\nstopped during {name}; the results so far:", file=sys.stderr)
        code = 130
    report.show(results)
    if results:
        print(f"raw samples: {options.output}")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument(
        "--only",
        default=os.environ.get("ONLY", ""),
        help="benchmarks to run, such as H1,R1",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/benchmarks.json"),
        help="the file for raw samples",
    )
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="measure this tree against the server of another commit",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few rounds: to see that it works, not to measure",
    )
    return parser


def choose(only: str, benchmarks: Benchmarks = BENCHMARKS) -> list[str]:
    """Return the named benchmarks; all if none is named.

    Raises:
        ValueError: a name is unknown; in a sentence with the names that there are.
    """
    named = list(dict.fromkeys(only.upper().replace(",", " ").split()))
    unknown = [name for name in named if name not in benchmarks]
    if unknown:
        raise ValueError(
            f"there is no benchmark {', '.join(unknown)}; there are {', '.join(benchmarks)} "
            "(benchmarks/README.md tells what each measures): make bench ONLY=S1,H1"
        )
    return named or list(benchmarks)


def keep_to_loopback() -> None:
    """Exclude loopback addresses from the configured proxy."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = f"{known},127.0.0.1" if known else "127.0.0.1"


def _run(name: str, benchmark: Benchmark, effort: Effort, results: list[Result]) -> int:
    """Run one benchmark; return 1 if it failed."""
    try:
        results += benchmark(effort)
    except NotHere as error:
        results.append(Missing(name, "all of it", str(error)))
    except Exception as error:  # the other benchmarks still run
        traceback.print_exc()
        results.append(
            Missing(name, "the benchmark failed", f"{type(error).__name__}: {error}")
        )
        return 1
    return 0


if __name__ == "__main__":
    keep_to_loopback()
    sys.exit(main())
