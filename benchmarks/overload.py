"""O1: four times more requests than the server can answer: what it still answers, how fast it refuses the rest, and
how old the answers of a ``stream`` are, of which only the newest request matters.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from benchmarks import calls, reference
from benchmarks.load import closed_loop
from benchmarks.open_load import OK, REFUSED, SUPERSEDED, OpenLoad, open_load
from benchmarks.overhead import models
from benchmarks.processes import CLIENT_CORE, our_server, pinned
from benchmarks.samples import Comparison, Result, summary
from benchmarks.timing import QUICK, Effort

CONNECTIONS = 8
TIMES_CAPACITY = 4
GOODPUT_GOAL, REFUSAL_LIMIT_MS, AGE_GOAL = 0.95, 5.0, 2.0
VALUES = np.linspace(-1, 1, reference.WORK_WIDTH, dtype=np.float32).reshape(1, -1)


def run(effort: Effort) -> list[Result]:
    """A small model, and one that takes five times as long: what refusals cost matters the less, the longer it runs."""
    return [result for model in reference.WORK_LAYERS for result in _run(model, effort)]


def _run(model: str, effort: Effort) -> list[Result]:
    """Peak and overload in turn, then one camera."""
    seconds, rounds = (0.4, 1) if effort is QUICK else (4.0, 3)
    peak: list[float] = []
    goodput: list[float] = []
    loads: list[OpenLoad] = []
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        port = stack.enter_context(our_server(models(), "--threads", "1")).socket
        with _connected(port, model, 1) as opened:
            service = [latency / 1e3 for latency in closed_loop(opened, seconds).latencies]
        for _ in range(rounds):
            with _connected(port, model, CONNECTIONS) as opened:
                peak.append(closed_loop(opened, seconds).rate)
            with _connected(port, model, CONNECTIONS) as opened:
                load = open_load(opened, TIMES_CAPACITY * peak[-1], seconds)
            good = [seen for seen in load.with_status(OK) if seen.came <= load.began + seconds]
            goodput.append(len(good) / seconds)
            loads.append(load)
        with _connected(port, model, 1, stream="camera") as opened:
            camera = open_load(opened, TIMES_CAPACITY * statistics.fmean(peak), seconds)
    one = statistics.median(service)
    return [*_overload(f"{one:.1f} ms model", loads, goodput, peak), *_freshness(f"{one:.1f} ms model", camera, one)]


def _overload(model: str, loads: list[OpenLoad], goodput: list[float], peak: list[float]) -> list[Result]:
    what = f"{model}, answers at {TIMES_CAPACITY} x capacity ({_own_lateness(loads)})"
    results: list[Result] = [Comparison("O1", what, "/s", goodput, peak, GOODPUT_GOAL, "least", "peak")]
    refusals = [age for load in loads for age in load.believed(REFUSED)]
    if refusals:
        what, limit = f"{model}, refusals ({_doubted(loads)})", [REFUSAL_LIMIT_MS]
        results.append(Comparison("O1", what, "ms", refusals, limit, 1.0, against="limit", statistic="p99"))
    return results


def _freshness(model: str, camera: OpenLoad, one: float) -> list[Result]:
    ages = camera.believed(OK)
    superseded = len(camera.with_status(SUPERSEDED))
    what = f"{model}, age of stream answers ({superseded} superseded, {_own_lateness([camera])}, {_doubted([camera])})"
    newest = f"{model}, age of stream answers"
    return [
        Comparison("O1", what, "ms", ages, [one], AGE_GOAL, against="one service time"),
        Comparison("O1", newest, "ms", ages, [one], AGE_GOAL, against="one service time", statistic="p99"),
    ]


def _own_lateness(loads: list[OpenLoad]) -> str:
    late = sorted(1e3 * late for load in loads for late in load.late)
    return f"sent {summary(late, 'p99'):.1f} ms late at p99, {late[-1]:.0f} at worst"


def _doubted(loads: list[OpenLoad]) -> str:
    return f"{100 * statistics.fmean(load.doubted for load in loads):.1f} % left out"


@contextmanager
def _connected(port: int, model: str, count: int, **parameters: object) -> Iterator[list[calls.Call]]:
    with ExitStack() as stack:
        opened = [calls.framed(port, model, VALUES, greet=True, **parameters) for _ in range(count)]
        for call in opened:
            stack.callback(call.close)
        yield opened
