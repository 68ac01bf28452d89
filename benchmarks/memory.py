"""R1: resident memory of a server that has loaded no model, against the libraries it is made of."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.processes import pocketserve, script
from benchmarks.samples import Comparison
from benchmarks.timing import Effort

ROUNDS = 5
GOAL = 1.15
FLOOR = "import flask, waitress, numpy, sys; print('ready', flush=True); sys.stdin.read()"


def run(effort: Effort) -> list[Comparison]:
    """Start both sides in turn and read what the system says of them."""
    models = Path(__file__).resolve().parents[1] / "models"
    ours, floor = [], []
    for _ in range(min(ROUNDS, effort.rounds)):
        with pocketserve(models) as (pid, _):
            time.sleep(0.2)  # let start-up end: this is a measurement, not a test
            ours.append(resident_mb(pid))
        with script(FLOOR) as (pid, _):
            floor.append(resident_mb(pid))
    return [Comparison("R1", "resident memory, no model loaded", "MB", ours, floor, GOAL)]


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"no VmRSS for process {pid}")
