"""R1: an idle server's resident memory against its libraries."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np

from benchmarks import reference
from benchmarks.overhead import models
from benchmarks.processes import (
    NO_TOKEN,
    ROOT,
    NotHere,
    our_server,
    pocketserve,
    script,
)
from benchmarks.samples import Comparison
from benchmarks.timing import Effort
from pocketserve_client import Client

ROUNDS = 5
GOAL, UNLOAD_GOAL = 1.15, 1.10
FLOOR = (
    "import flask, waitress, numpy, sys; print('ready', flush=True); sys.stdin.read()"
)


def run(effort: Effort) -> list[Comparison]:
    """Start both sides in turns, and read their memory."""
    embedded = ROOT / "models"
    ours = []
    floor = []
    for _ in range(min(ROUNDS, effort.rounds)):
        with pocketserve(embedded) as (pid, _):
            time.sleep(0.2)  # let start-up end: this is a measurement, not a test
            ours.append(resident_mb(pid))
        with script(FLOOR) as (pid, _):
            floor.append(resident_mb(pid))
    libraries = "import flask, waitress, numpy"
    return [
        Comparison(
            "R1",
            "resident memory, no model loaded",
            "MB",
            ours,
            floor,
            GOAL,
            against=libraries,
        ),
        _after_unloading(min(ROUNDS, effort.rounds)),
    ]


def _after_unloading(rounds: int) -> Comparison:
    """Measure after unloading a tiny model and a large one."""
    before = []
    after = []
    for _ in range(rounds):
        with (
            our_server(models()) as ours,
            Client(f"http://127.0.0.1:{ours.http}", token_file=NO_TOKEN) as client,
        ):
            before.append(
                _use_and_unload(
                    client, ours.pid, reference.SMALL_MODEL, [1, 1, 1, reference.SMALL]
                )
            )
            after.append(
                _use_and_unload(client, ours.pid, "work", [1, reference.WORK_WIDTH])
            )
    what = "resident memory, 49 MB loaded and unloaded"
    return Comparison(
        "R1",
        what,
        "MB",
        after,
        before,
        UNLOAD_GOAL,
        against="level the framework's import left",
    )


def _use_and_unload(client: Client, pid: int, model: str, shape: list[int]) -> float:
    client.load(model)
    client.infer(model, {"x": np.zeros(shape, np.float32)})
    client.unload(model)
    time.sleep(0.3)
    return resident_mb(pid)


def resident_mb(pid: int) -> float:
    """Return a process's resident memory in MB.

    Raises:
        NotHere: neither is available.
    """
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmRSS"].split()[0]) * 1024 / 1e6
    try:
        told = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=10,
        )
        return int(told.stdout) * 1024 / 1e6
    except (OSError, ValueError):
        raise NotHere(
            "this system does not tell a process's memory (neither /proc nor ps)"
        ) from None
