"""L1: the work of an idle server in a minute."""

from __future__ import annotations

import contextlib
import time
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks import calls, reference
from benchmarks.overhead import models, values_for
from benchmarks.processes import NotHere, Ours, cpu_seconds, our_server
from benchmarks.samples import Comparison, Result
from benchmarks.timing import QUICK, Effort

SETTLE_S, MINUTE_S = 3.0, 60.0
CPU_LIMIT_MS, WAKE_UPS_LIMIT = 10.0, 60.0


def run(effort: Effort) -> list[Result]:
    """Hold an idle minute of our server against limits."""
    return results(*measure(our_server(models(), "--threads", "1"), effort))


def results(cpu: float, wake_ups: float, of: str = "") -> list[Result]:
    """Compare CPU time and wake-ups a minute with their limits."""
    return [
        Comparison(
            "L1",
            f"CPU time in an idle minute{of}",
            "ms",
            [cpu],
            [CPU_LIMIT_MS],
            1.0,
            against="limit",
        ),
        Comparison(
            "L1",
            f"wake-ups in an idle minute{of}",
            "",
            [wake_ups],
            [WAKE_UPS_LIMIT],
            1.0,
            against="limit",
        ),
    ]


def measure(
    server: AbstractContextManager[Ours], effort: Effort
) -> tuple[float, float]:
    """Measure a minute with loaded models and idle connections.

    Returns:
        Milliseconds of CPU time and wake-ups in a minute.

    Raises:
        NotHere: the system has no /proc.
    """
    if not Path("/proc/self/task").exists():
        raise NotHere("this system does not tell how often a thread was woken (/proc)")
    settle, seconds = (0.2, 0.5) if effort is QUICK else (SETTLE_S, MINUTE_S)
    with server as ours:
        opened = []
        for model in (reference.PHOTO_MODEL, reference.SMALL_MODEL):
            opened.append(
                calls.framed(ours.socket, model, values_for(model), greet=True)
            )
            calls.check(opened[-1])
        opened.append(
            calls.http_binary(
                ours.http, reference.SMALL_MODEL, values_for(reference.SMALL_MODEL)
            )
        )
        calls.check(opened[-1])
        time.sleep(settle)
        before = cpu_seconds(ours.pid), _switches(ours.pid)
        time.sleep(seconds)
        after = cpu_seconds(ours.pid), _switches(ours.pid)
        for call in opened:
            call.close()
    share = MINUTE_S / seconds
    return 1e3 * (after[0] - before[0]) * share, count_wake_ups(
        before[1], after[1]
    ) * share


def _switches(pid: int) -> dict[str, int]:
    """Return the context switches of each thread."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            lines = (task / "status").read_text().splitlines()
            found[task.name] = sum(
                int(line.split()[1]) for line in lines if "ctxt_switches" in line
            )
    return found


def count_wake_ups(before: dict[str, int], after: dict[str, int]) -> int:
    """Return the context switches between two samples."""
    lived = sum(count - before.get(thread, 0) for thread, count in after.items())
    return lived + len(before.keys() - after.keys())
