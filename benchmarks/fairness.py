"""F1: a fast model's rate beside a saturated slow one."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks import calls, reference
from benchmarks.load import closed_loop
from benchmarks.overhead import models
from benchmarks.overload import VALUES
from benchmarks.processes import CLIENT_CORE, Ours, our_server, pinned
from benchmarks.samples import Comparison, Result
from benchmarks.timing import QUICK, Effort, say

FAST, SLOW = reference.WORK_LAYERS
CONNECTIONS = 8
SHARE_GOALS = {FAST: 0.9, SLOW: 0.5}
"""Shares of half of each model's rate alone.

Concurrent runs share a core as the system's scheduler decides (decision 11), so the slow
one's goal only says that it is not starved.
"""

MEDIAN_GOAL, P99_GOAL = 1.0, 2.0


def _by_model() -> dict[str, list[float]]:
    return {FAST: [], SLOW: []}


@dataclass
class _Measurements:
    """Rates by model alone and beside the other, and microseconds of single callers."""

    alone: dict[str, list[float]] = field(default_factory=_by_model)
    beside: dict[str, list[float]] = field(default_factory=_by_model)
    single: dict[str, list[float]] = field(default_factory=_by_model)
    fast_beside_slow: list[float] = field(default_factory=list)


def run(effort: Effort) -> list[Result]:
    """Measure each model alone, then both, in turns."""
    seconds, rounds = (0.3, 1) if effort is QUICK else (1.5, 6)
    measured = _Measurements()
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        ours = stack.enter_context(our_server(models(), "--threads", "1"))
        opened = {model: _open_calls(stack, ours, model) for model in (FAST, SLOW)}
        for _ in range(rounds):
            say("sharing between models")
            _measure_round(opened, seconds, measured)
    return [*_share_results(measured), *_latency_results(measured)]


def _open_calls(stack: ExitStack, ours: Ours, model: str) -> list[calls.Call]:
    opened = []
    for _ in range(CONNECTIONS):
        call = calls.framed(ours.socket, model, VALUES, greet=True)
        stack.callback(call.close)
        opened.append(call)
    calls.check(opened[0])
    return opened


def _measure_round(
    opened: dict[str, list[calls.Call]], seconds: float, measured: _Measurements
) -> None:
    for model, own in opened.items():
        measured.alone[model].append(closed_loop(own, seconds).rate)
        measured.single[model] += closed_loop(own[:1], seconds / 3).latencies
    load = closed_loop([*opened[FAST], *opened[SLOW]], seconds)
    answers = {FAST: load.by_call[:CONNECTIONS], SLOW: load.by_call[CONNECTIONS:]}
    for model, latencies in answers.items():
        measured.beside[model].append(sum(map(len, latencies)) / load.seconds)
    load = closed_loop([opened[FAST][0], *opened[SLOW]], seconds)
    measured.fast_beside_slow += load.by_call[0]


def _share_results(measured: _Measurements) -> list[Result]:
    results: list[Result] = []
    for name, model in (("fast", FAST), ("slow", SLOW)):
        halves = [rate / 2 for rate in measured.alone[model]]
        results.append(
            Comparison(
                "F1",
                f"the {name} of two models, 8 connections each",
                "/s",
                measured.beside[model],
                halves,
                SHARE_GOALS[model],
                "least",
                "half of its rate alone",
            )
        )
    return results


def _latency_results(measured: _Measurements) -> list[Result]:
    fast = statistics.median(measured.single[FAST])
    slow = statistics.median(measured.single[SLOW])
    title = f"1 fast caller beside 8 of a {slow / fast:.1f} x slower model"
    samples = measured.fast_beside_slow
    floor = [fast + slow]
    against = "one run of each"
    return [
        Comparison("F1", title, "µs", samples, floor, MEDIAN_GOAL, against=against),
        Comparison(
            "F1",
            title,
            "µs",
            samples,
            floor,
            P99_GOAL,
            against=against,
            statistic="p99",
        ),
    ]
