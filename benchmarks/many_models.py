"""G1: a folder with 1,000 models; and how start and memory grow with their number, and with loaded versions."""

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
from benchmarks.processes import CLIENT_CORE, NO_TOKEN, our_server, pinned
from benchmarks.samples import Comparison, Result, growth
from benchmarks.timing import QUICK, Effort, interleave
from pocketserve_client import Client

COUNTS = (1, 250, 500, 1000)
LOADED = (1, 8, 16, 32, 64)
START_LIMIT_MS, MEMORY_LIMIT_KB, LATENCY_GOAL = 2000.0, 20.0, 1.1


def run(effort: Effort) -> list[Result]:
    """Start servers on folders of several sizes, then ask the smallest and the largest in turn."""
    counts = (1, 20) if effort is QUICK else COUNTS
    starts: list[float] = []
    resident: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(pinned(CLIENT_CORE))
        sides = {}
        for count in counts:
            began = time.perf_counter()
            server = stack.enter_context(
                our_server(copies(folder / str(count), count), "--threads", "1")
            )
            starts.append((time.perf_counter() - began) * 1e3)
            # A start reads no model; their memory is that of all, read.
            urllib.request.urlopen(
                f"http://127.0.0.1:{server.http}/v2/models", timeout=60
            ).read()
            time.sleep(0.3)
            resident.append(resident_mb(server.pid) * 1e3)
            sides[count] = server
        opened = {
            str(count): calls.framed(
                sides[count].socket, "m0", values_for(reference.PHOTO_MODEL), greet=True
            )
            for count in (counts[0], counts[-1])
        }
        for call in opened.values():
            calls.check(call)
        samples = interleave(opened, effort)
        for call in opened.values():
            call.close()
    memory = growth(
        "G1", "resident memory by models in the folder", "kB", "model", counts, resident
    )
    start = growth("G1", "start by models in the folder", "ms", "model", counts, starts)
    few, many = samples[str(counts[0])], samples[str(counts[-1])]
    return [
        Comparison(
            "G1",
            f"start with {counts[-1]} models",
            "ms",
            [starts[-1]],
            [START_LIMIT_MS],
            1.0,
            against="limit",
        ),
        Comparison(
            "G1",
            "memory for each",
            "kB",
            [memory.slope],
            [MEMORY_LIMIT_KB],
            1.0,
            against="limit",
        ),
        Comparison(
            "G1",
            f"S1 with {counts[-1]} models",
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


def copies(folder: Path, count: int) -> Path:
    """A folder with so many models: links to the photo's echo model."""
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
    counts = LOADED[:2] if effort is QUICK else LOADED
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
