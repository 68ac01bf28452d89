"""Q1: requests a second over HTTP, ours and Triton's.

Connections send requests without pauses, with the binary tensors of Triton's client.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks import calls as call_to
from benchmarks import reference
from benchmarks.load import closed_loop
from benchmarks.peers import ensure_environment
from benchmarks.processes import CLIENT_CORE, StartError, our_server, pinned
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.timing import QUICK, Effort, say
from benchmarks.triton import triton

CONNECTIONS = (1, 4, 16)
LARGE = 3 * 224 * 224  # numbers of a picture: 602,112 B
GOALS = {reference.SMALL: 0.7, LARGE: 1.0}
"""By the input's elements."""


def run(effort: Effort) -> list[Result]:
    """Each on one core, with one thread for a run."""
    try:
        ensure_environment("triton", install=effort is not QUICK)
        return [*_compare(effort)]
    except StartError as error:
        return [Missing("Q1", "requests a second", str(error))]


def _compare(effort: Effort) -> Iterator[Result]:
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="pocketserve-bench-")
            )
        )
        for count in GOALS:
            (folder / f"echo-{4 * count}.tflite").write_bytes(
                reference.echo_model(count)
            )
        ours = stack.enter_context(our_server(folder, "--threads", "1"))
        ports = {"ours": ours.http, "Triton": stack.enter_context(triton(folder))}
        stack.enter_context(pinned(CLIENT_CORE))
        for count, goal in GOALS.items():
            for connections in CONNECTIONS:
                rates = _rates(ports, count, connections, effort)
                what = f"HTTP, {4 * count:,} B in / 4,004 B out, connections: {connections}"
                against = "Triton, our engine in its Python backend"
                yield Comparison(
                    "Q1",
                    what,
                    "/s",
                    rates["ours"],
                    rates["Triton"],
                    goal,
                    "least",
                    against,
                )


def _rates(
    ports: dict[str, int], count: int, connections: int, effort: Effort
) -> dict[str, list[float]]:
    """Return requests a second, in blocks of each side in turn."""
    seconds, blocks = (0.3, 1) if effort is QUICK else (2.0, 6)
    values = np.random.default_rng(3).random((1, 1, 1, count), np.float32)
    rates: dict[str, list[float]] = {name: [] for name in ports}
    with ExitStack() as stack:
        opened = {}
        for name, port in ports.items():
            opened[name] = [
                call_to.http_binary(port, f"echo-{4 * count}", values)
                for _ in range(connections)
            ]
            for call in opened[name]:
                stack.callback(call.close)
                call_to.check(call)
        for number in range(blocks):
            for name, some in opened.items():
                say(
                    f"{name}, {4 * count:,} B, {connections} connections, {number + 1} of {blocks}"
                )
                rates[name].append(closed_loop(some, seconds).rate)
    return rates
