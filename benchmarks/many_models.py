"""G1: start and memory of folders with up to 1,000 models."""

from __future__ import annotations

import os
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks import calls, reference
from benchmarks.memory import resident_mb
from benchmarks.overhead import models, values_for
from benchmarks.processes import CLIENT_CORE, NO_TOKEN, Ours, our_server, pinned
from benchmarks.samples import Comparison, Result, growth
from benchmarks.timing import QUICK, Effort, interleave
from pocketserve_client import Client

COUNTS = (1, 250, 500, 1000)
LOADED = (1, 8, 16, 32, 64)
START_LIMIT_MS, MEMORY_LIMIT_KB, LATENCY_GOAL = 2000.0, 20.0, 1.1


def run(effort: Effort) -> list[Result]:
    """Start servers on folders of several sizes, and measure them."""
    counts = COUNTS
    if effort is QUICK:
        counts = (1, 20)
    starts: list[float] = []
    resident: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(pinned(CLIENT_CORE))
        servers = []
        for count in counts:
            models_dir = copies(folder / str(count), count)
            began = time.perf_counter()
            server = stack.enter_context(our_server(models_dir, "--threads", "1"))
            starts.append((time.perf_counter() - began) * 1e3)
            resident.append(_memory_with_index(server))
            servers.append(server)
        few, many = _latencies(stack, servers[0], servers[-1], effort)
    memory = growth(
        "G1", "resident memory by models in the folder", "kB", "model", counts, resident
    )
    start = growth("G1", "start by models in the folder", "ms", "model", counts, starts)
    most = counts[-1]
    return [
        _against_limit(f"start with {most} models", "ms", starts[-1], START_LIMIT_MS),
        _against_limit("memory for each", "kB", memory.slope, MEMORY_LIMIT_KB),
        Comparison(
            "G1",
            f"S1 with {most} models",
            "µs",
            many,
            few,
            LATENCY_GOAL,
            against="with one model",
        ),
        memory,
        start,
        _loaded(effort),
    ]


def _memory_with_index(server: Ours) -> float:
    """Return resident kB after the index is read, since a start reads no model."""
    url = f"http://127.0.0.1:{server.http}/v2/models"
    urllib.request.urlopen(url, timeout=60).read()
    time.sleep(0.3)
    return resident_mb(server.pid) * 1e3


def _latencies(
    stack: ExitStack, first: Ours, last: Ours, effort: Effort
) -> tuple[list[float], list[float]]:
    """Return the microseconds of requests to two servers."""
    values = values_for(reference.PHOTO_MODEL)
    opened = {}
    for name, server in (("first", first), ("last", last)):
        call = calls.framed(server.socket, "m0", values, greet=True)
        stack.callback(call.close)
        calls.check(call)
        opened[name] = call
    samples = interleave(opened, effort)
    return samples["first"], samples["last"]


def _against_limit(title: str, unit: str, value: float, limit: float) -> Comparison:
    return Comparison("G1", title, unit, [value], [limit], 1.0, against="limit")


def copies(folder: Path, count: int) -> Path:
    """Create a folder with links to the photo's echo model."""
    source = models() / f"{reference.PHOTO_MODEL}.tflite"
    folder.mkdir()
    for number in range(count):
        os.link(source, folder / f"m{number}.tflite") if _same_device(
            source, folder
        ) else (folder / f"m{number}.tflite").write_bytes(source.read_bytes())
    return folder


def _same_device(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def _loaded(effort: Effort) -> Result:
    """Memory by the number of loaded versions."""
    counts = LOADED
    if effort is QUICK:
        counts = LOADED[:2]
    resident = []
    values = values_for(reference.PHOTO_MODEL)
    with tempfile.TemporaryDirectory() as name:
        folder = copies(Path(name, "models"), counts[-1])
        with (
            our_server(folder, "--threads", "1") as ours,
            Client(f"http://127.0.0.1:{ours.http}", token_file=NO_TOKEN) as client,
        ):
            done = 0
            for count in counts:
                for number in range(done, count):
                    client.infer(f"m{number}", {"x": np.asarray(values)})
                done = count
                time.sleep(0.1)
                resident.append(resident_mb(ours.pid) * 1e3)
    return growth(
        "G1", "resident memory by loaded echo models", "kB", "version", counts, resident
    )
