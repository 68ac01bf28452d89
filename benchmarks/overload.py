"""O1: four times more requests than the server can answer.

It measures the answers, the speed of refusals, and the age of a ``stream``'s answers,
of which only the newest request matters.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from benchmarks import calls, reference
from benchmarks.load import closed_loop
from benchmarks.model_work import ask
from benchmarks.open_load import OK, REFUSED, SUPERSEDED, OpenLoad, open_load
from benchmarks.overhead import models
from benchmarks.processes import (
    CLIENT_CORE,
    Ours,
    cpu_seconds,
    module,
    our_server,
    pinned,
)
from benchmarks.samples import Comparison, Result, summary
from benchmarks.timing import QUICK, Effort

CONNECTIONS = 8
TIMES_CAPACITY = 4
GOODPUT_GOAL, REFUSAL_LIMIT_MS, AGE_GOAL = 0.95, 5.0, 2.0
VALUES = np.linspace(-1, 1, reference.WORK_WIDTH, dtype=np.float32).reshape(1, -1)


@dataclass
class Rounds:
    """The measurements of each round.

    Attributes:
        peak: answers per second to clients that wait for theirs.
        before_peak, before_load: runs per second of the same file in a separate process on
            the server's core.
        shares: the server's share of its core under overload.
    """

    peak: list[float] = field(default_factory=list)
    loads: list[OpenLoad] = field(default_factory=list)
    before_peak: list[float] = field(default_factory=list)
    before_load: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


def run(effort: Effort) -> list[Result]:
    """Measure a small model and a five times slower one."""
    return [result for model in reference.WORK_LAYERS for result in _run(model, effort)]


def _run(model: str, effort: Effort) -> list[Result]:
    """Measure peak and overload in turns, then one camera."""
    seconds, rounds = (0.4, 1) if effort is QUICK else (2.0, 6)
    file = models() / f"{model}.tflite"
    measured = Rounds()
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        ours = stack.enter_context(our_server(models(), "--threads", "1"))
        child, _ = stack.enter_context(module("inprocess", str(file)))
        with _connected(ours.socket, model, 1) as opened:
            service = [
                latency / 1e3
                for latency in closed_loop(opened, seconds, spins=True).latencies
            ]
        for _ in range(rounds):
            _round(measured, ours, child, model, seconds)
        with _connected(ours.socket, model, 1, stream="camera") as opened:
            camera = open_load(
                opened, TIMES_CAPACITY * statistics.median(measured.peak), seconds
            )
    one = statistics.median(service)
    return [
        *_overload(f"{one:.1f} ms model", measured),
        *_freshness(f"{one:.1f} ms model", camera, one),
    ]


def _round(
    measured: Rounds,
    ours: Ours,
    child: subprocess.Popen[bytes],
    model: str,
    seconds: float,
) -> None:
    measured.before_peak.append(ask(child, str(seconds / 8)))
    with _connected(ours.socket, model, CONNECTIONS) as opened:
        measured.peak.append(closed_loop(opened, seconds, spins=True).rate)
    measured.before_load.append(ask(child, str(seconds / 8)))
    with _connected(ours.socket, model, CONNECTIONS) as opened:
        began = time.perf_counter()
        had = cpu_seconds(ours.pid)
        measured.loads.append(
            open_load(opened, TIMES_CAPACITY * measured.peak[-1], seconds)
        )
        measured.shares.append(
            (cpu_seconds(ours.pid) - had) / (time.perf_counter() - began)
        )


def _overload(model: str, measured: Rounds) -> list[Result]:
    loads = measured.loads
    goodput = [load.goodput for load in measured.loads]
    had = f"server had {100 * min(measured.shares):.0f} to {100 * max(measured.shares):.0f} % of its core"
    what = f"{model}, answers at {TIMES_CAPACITY} x capacity ({had}, {_own_lateness(loads)})"
    alone = f"{model}, the model alone before the overload"
    results: list[Result] = [
        Comparison(
            "O1", what, "/s", goodput, measured.peak, GOODPUT_GOAL, "least", "peak"
        ),
        Comparison(
            "O1",
            alone,
            "/s",
            measured.before_load,
            measured.before_peak,
            None,
            "least",
            "before the peak",
        ),
    ]
    refusals = [age for load in loads for age in load.believed(REFUSED)]
    if refusals:
        what = f"{model}, refusals ({_doubted(loads)})"
        limit = [REFUSAL_LIMIT_MS]
        results.append(
            Comparison(
                "O1", what, "ms", refusals, limit, 1.0, against="limit", statistic="p99"
            )
        )
    return results


def _freshness(model: str, camera: OpenLoad, one: float) -> list[Result]:
    ages = camera.believed(OK)
    superseded = len(camera.with_status(SUPERSEDED))
    what = f"{model}, age of stream answers ({superseded} superseded, {_own_lateness([camera])}, {_doubted([camera])})"
    newest = f"{model}, age of stream answers"
    return [
        Comparison("O1", what, "ms", ages, [one], AGE_GOAL, against="one service time"),
        Comparison(
            "O1",
            newest,
            "ms",
            ages,
            [one],
            AGE_GOAL,
            against="one service time",
            statistic="p99",
        ),
    ]


def _own_lateness(loads: list[OpenLoad]) -> str:
    late = sorted(1e3 * late for load in loads for late in load.late)
    return f"sent {summary(late, 'p99'):.1f} ms late at p99, {late[-1]:.0f} at worst"


def _doubted(loads: list[OpenLoad]) -> str:
    return f"{100 * statistics.fmean(load.doubted for load in loads):.1f} % left out"


@contextmanager
def _connected(
    port: int, model: str, count: int, **parameters: object
) -> Iterator[list[calls.Call]]:
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(calls.framed(port, model, VALUES, greet=True, **parameters))
        for call in opened:
            stack.callback(call.close)
        yield opened
