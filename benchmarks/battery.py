"""W1: the CPU time of small requests at 1,000 a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from benchmarks import calls as call_to
from benchmarks import reference
from benchmarks.overhead import NAMES, models, values_for
from benchmarks.processes import CLIENT_CORE, cpu_seconds, module, our_server, pinned
from benchmarks.samples import Comparison, Result
from benchmarks.timing import QUICK, Effort, say

RATE = 1000
BLOCKS, BLOCK_S = 6, 10.0
GOAL = 1.5


class Side(NamedTuple):
    """A server's process, and one request to it."""

    pid: int
    call: Callable[[], object]


def run(effort: Effort) -> list[Result]:
    """Measure a minute of each side in alternating blocks."""
    blocks, seconds = (1, 0.5) if effort is QUICK else (BLOCKS, BLOCK_S)
    with pinned(CLIENT_CORE), _sides() as sides:
        costs: dict[str, list[float]] = {name: [] for name in sides}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(blocks):
            for name, side in sides.items():
                say(f"{name}, {number + 1} of {blocks}")
                before = cpu_seconds(side.pid)
                began = time.perf_counter()
                count = _paced(side.call, RATE, seconds)
                rates[name].append(count / (time.perf_counter() - began))
                costs[name].append(1e6 * (cpu_seconds(side.pid) - before) / count)
    rate = min(rates["ours"])
    title = f"64 B in / 4,004 B out, {rate:.0f} requests a second, CPU time each"
    results: list[Result] = []
    goals = {"framed": GOAL, "framed+model": GOAL, "flask+model": None}
    for name, goal in goals.items():
        against = f"{NAMES[name]} ({min(rates[name]):.0f}/s)"
        results.append(
            Comparison(
                "W1", title, "µs", costs["ours"], costs[name], goal, against=against
            )
        )
    return results


@contextmanager
def _sides() -> Iterator[dict[str, Side]]:
    """Return our socket, its floor, and Flask over HTTP."""
    model = reference.SMALL_MODEL
    values = values_for(reference.SMALL_MODEL)
    file = str(models() / f"{model}.tflite")
    with ExitStack() as stack:
        ours = stack.enter_context(our_server(models(), "--threads", "1"))
        opened = {
            "ours": (ours.pid, call_to.framed(ours.socket, model, values, greet=True))
        }
        for name, work in (("framed", "numpy"), ("framed+model", file)):
            child, port = stack.enter_context(module("bare", "framed", work))
            opened[name] = child.pid, call_to.framed(port, model, values, greet=False)
        child, port = stack.enter_context(module("wsgi", "flask", file))
        opened["flask+model"] = child.pid, call_to.http_binary(port, model, values)
        for _, call in opened.values():
            stack.callback(call.close)
            call_to.check(call)
        yield {name: Side(*side) for name, side in opened.items()}


def _paced(call: Callable[[], object], rate: float, seconds: float) -> int:
    """Send requests on a schedule; return their number."""
    count = int(rate * seconds)
    began = time.perf_counter()
    for number in range(count):
        early = began + number / rate - time.perf_counter()
        if early > 0:
            time.sleep(early)
        call()
    return count
