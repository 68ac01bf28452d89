"""L1: what a server with loaded models does for a minute when nobody asks it anything: ideally nothing."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from benchmarks import calls, reference
from benchmarks.overhead import models, values_for
from benchmarks.processes import our_server
from benchmarks.samples import Comparison, Result
from benchmarks.timing import QUICK, Effort

SETTLE_S, MINUTE_S = 3.0, 60.0
CPU_LIMIT_MS, WAKE_UPS_LIMIT = 10.0, 60.0


def run(effort: Effort) -> list[Result]:
    """Load models over both transports, keep the connections open, wait, and look again."""
    settle, seconds = (0.2, 0.5) if effort is QUICK else (SETTLE_S, MINUTE_S)
    with our_server(models(), "--threads", "1") as ours:
        opened = []
        for model in (reference.PHOTO_MODEL, reference.SMALL_MODEL):
            opened.append(calls.framed(ours.socket, model, values_for(model), greet=True))
            calls.check(opened[-1], is_http=False)
        opened.append(calls.http_binary(ours.http, reference.SMALL_MODEL, values_for(reference.SMALL_MODEL)))
        calls.check(opened[-1], is_http=True)
        time.sleep(settle)
        before = _activity(ours.pid)
        time.sleep(seconds)
        after = _activity(ours.pid)
        for call in opened:
            call.close()
    share = MINUTE_S / seconds
    cpu, wake_ups = ((now - then) * share for now, then in zip(after, before, strict=True))
    return [
        Comparison("L1", "CPU time in an idle minute", "ms", [cpu], [CPU_LIMIT_MS], 1.0, against="limit"),
        Comparison("L1", "wake-ups in an idle minute", "", [wake_ups], [WAKE_UPS_LIMIT], 1.0, against="limit"),
    ]


def _activity(pid: int) -> tuple[float, float]:
    """Milliseconds of CPU and context switches of all threads so far."""
    cpu = switches = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            cpu += int((task / "schedstat").read_text().split()[0]) / 1e6
            lines = (task / "status").read_text().splitlines()
            switches += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return cpu, switches
