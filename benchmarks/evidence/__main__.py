"""``make evidence``: measures conversions and writes docs/generated/evidence.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.evidence.claims import Evidence
from benchmarks.evidence.conversions import Folders, make_models
from benchmarks.evidence.machines import MACHINES, Machine, NotAvailable, measure
from benchmarks.evidence.page import page
from benchmarks.evidence.results import CONVERSIONS, RESULTS, read_results
from benchmarks.evidence.subjects import ROOT, Subject, available

PAGE = ROOT / "docs" / "generated" / "evidence.md"
STEPS = ("models", *MACHINES, "page")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named steps; fail if a machine is missing."""
    options = _parser().parse_args(arguments)
    try:
        subjects = available([name for name in options.models.split(",") if name])
        steps = _chosen(options.steps)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    folders = Folders(options.folder)
    if "models" in steps:
        make_models(folders, subjects, options.results / CONVERSIONS, say)
    code = _measure_all(folders, subjects, steps, options)
    if "page" in steps:
        PAGE.write_text(page(Evidence(*read_results(options.results))), "utf-8")
        print(PAGE)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence", description=__doc__
    )
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)} [all]"
    )
    parser.add_argument(
        "--models", default="", metavar="NAME[,NAME…]", help="these models only [all]"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=8.0,
        metavar="S",
        help="timed turns of each comparison [8]",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="repeat the measurements of an earlier run",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "evidence",
        help="the working folder",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        help="the folder of the small, public results",
    )
    return parser


def _measure_all(
    folders: Folders,
    subjects: Sequence[Subject],
    steps: Sequence[str],
    options: argparse.Namespace,
) -> int:
    """Measure all subjects on the chosen machines; return 1 if one is missing."""
    jobs = []
    for name, machine in MACHINES.items():
        if name in steps:
            jobs += [(machine, subject) for subject in subjects]
    if options.again:
        for machine, subject in jobs:
            _raw_result(folders, machine, subject).unlink(missing_ok=True)
    code = 0
    for number, (machine, subject) in enumerate(jobs, 1):
        say(f"{number} of {len(jobs)}: {subject.name} on the {machine.title} …")
        code = max(code, _measure(folders, machine, subject, options))
    return code


def _raw_result(folders: Folders, machine: Machine, subject: Subject) -> Path:
    return folders.raw / f"{machine.name}-{subject.name}.json"


def _measure(
    folders: Folders, machine: Machine, subject: Subject, options: argparse.Namespace
) -> int:
    """Measure everything that has no result yet."""
    if _raw_result(folders, machine, subject).exists():
        say("  measured before; --again repeats it")
        return 0
    began = time.monotonic()
    try:
        result = measure(folders, machine, subject, options.seconds, options.results)
    except NotAvailable as error:
        say(f"  {error}")
        return 1
    say(f"  {len(result['versions'])} versions in {time.monotonic() - began:.0f} s")
    return 0


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def _chosen(steps: Sequence[str]) -> Sequence[str]:
    if unknown := [step for step in steps if step not in STEPS]:
        raise ValueError(
            f"there is no step {', '.join(unknown)}; there are {', '.join(STEPS)}"
        )
    return steps or STEPS


if __name__ == "__main__":
    sys.exit(main())
