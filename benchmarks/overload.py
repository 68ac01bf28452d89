"""O1: four times more requests than the server can answer: what it still answers, how fast it refuses the rest, and
how old the answers of a ``stream`` are, of which only the newest request matters.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack

import numpy as np

from benchmarks import calls, reference
from benchmarks.load import OK, REFUSED, SUPERSEDED, closed_loop, open_loop
from benchmarks.overhead import models
from benchmarks.processes import CLIENT_CORE, our_server, pinned
from benchmarks.samples import Comparison, Result
from benchmarks.timing import QUICK, Effort

CONNECTIONS = 8
TIMES_CAPACITY = 4
GOODPUT_GOAL, REFUSAL_LIMIT_MS, AGE_GOAL = 0.95, 5.0, 2.0
VALUES = np.linspace(-1, 1, reference.WORK_WIDTH, dtype=np.float32).reshape(1, -1)


def run(effort: Effort) -> list[Result]:
    """Peak and overload in turn, then one camera."""
    seconds, rounds = (0.4, 1) if effort is QUICK else (4.0, 3)
    peak: list[float] = []
    goodput: list[float] = []
    refusals: list[float] = []
    late = 0.0
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        server = stack.enter_context(our_server(models(), "--threads", "1"))
        opened = [_connect(stack, server.socket) for _ in range(CONNECTIONS)]
        service = closed_loop(opened[:1], seconds)
        for _ in range(rounds):
            peak.append(closed_loop(opened, seconds).rate)
            fresh = [_connect(stack, server.socket) for _ in range(CONNECTIONS)]
            load = open_loop(fresh, TIMES_CAPACITY * peak[-1], seconds)
            late = max(late, load.late)
            began = min(left for _, left, _ in load.answers)
            good = [came for _, came in load.with_status(OK) if came <= began + seconds]
            goodput.append(len(good) / seconds)
            refusals += [(came - left) * 1e3 for left, came in load.with_status(REFUSED)]
        stream = open_loop(
            [_connect(stack, server.socket, stream="camera")], TIMES_CAPACITY * statistics.fmean(peak), seconds
        )
    ages = [(came - left) * 1e3 for left, came in stream.with_status(OK)]
    one = [latency / 1e3 for latency in service.latencies]
    limit = [REFUSAL_LIMIT_MS]
    what = f"answers at 4 x capacity (sent ≤ {1e3 * late:.0f} ms late)"
    results: list[Result] = [Comparison("O1", what, "/s", goodput, peak, GOODPUT_GOAL, "least", "peak")]
    if refusals:
        results.append(Comparison("O1", "refusals", "ms", refusals, limit, 1.0, against="limit", statistic="p99"))
    what = f"age of stream answers ({len(stream.with_status(SUPERSEDED))} superseded)"
    results.append(Comparison("O1", what, "ms", ages, one, AGE_GOAL, against="one service time", statistic="median"))
    oldest = [summary_p99(ages)]
    results.append(
        Comparison("O1", "age of stream answers, p99", "ms", oldest, [statistics.median(one)], AGE_GOAL, against="same")
    )
    return results


def summary_p99(samples: list[float]) -> float:
    """The 99th percentile."""
    return sorted(samples)[min(len(samples) - 1, int(0.99 * len(samples)))]


def _connect(stack: ExitStack, port: int, **parameters: object) -> calls.Call:
    call = calls.framed(port, reference.WORK_MODEL, VALUES, greet=True, **parameters)
    stack.callback(call.close)
    return call
