"""Measure one version in a process."""

from __future__ import annotations

import subprocess
import sys

from pocketserve_lab.compare.worker import _memory

BUSY = "import sys; print(sum(range(10_000_000)), flush=True); sys.stdin.read()"


def test_the_cpu_time_of_an_ended_child_still_counts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        running = _memory()["children_cpu_s"]
        child.communicate(timeout=60)
    assert _memory()["children_cpu_s"] >= running > 0
