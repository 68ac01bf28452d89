"""V1: a live camera over the socket, of whose frames the newest counts, and the same steps in one process.

Frames of 640 x 480, turned upright, cropped, classified by MobileNet and labelled. The camera gives 30 a second, and
twice as many as the model can answer. The process does not copy, frame or queue anything.
"""

from __future__ import annotations

import json
import select
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import calls
from benchmarks.model_work import ask, find_mobilenet
from benchmarks.open_load import OK, SUPERSEDED, OpenLoad, open_load
from benchmarks.pictures import NO_MOBILENET, SIDEWAYS, check_labels, photo, scene
from benchmarks.processes import CLIENT_CORE, module, our_server, pinned
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.timing import QUICK, Effort, say
from pocketserve_wire import strict_json
from pocketserve_wire.frames import HEADER, HEADER_BYTES

SIZE = (640, 480)
USUAL_RATE, TIMES_CAPACITY = 30.0, 2
RATE_GOAL, AGE_GOAL, LATE_GOAL = 0.95, 1.3, 2.0
MANIFEST = 'task = "image-classification"\n[image]\nresize = "crop"\n'
QUERIES = {"NV21": f"format=nv21&width={SIZE[0]}&height={SIZE[1]}&rotation=90", "JPEG": "top_k=5"}


@dataclass
class Rounds:
    """What was measured in turn, round by round.

    Attributes:
        rates: frames a second that the process answered.
        ages, runs: milliseconds from each of its frames to the answer, and of the work alone.
    """

    loads: list[OpenLoad] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)


def run(effort: Effort) -> list[Result]:
    """Measure raw frames and JPEGs."""
    file = find_mobilenet()
    if file is None:
        return [Missing("V1", "live camera", NO_MOBILENET)]
    bodies = {"NV21": nv21(), "JPEG": photo(SIDEWAYS, SIZE)}
    return [result for kind, body in bodies.items() for result in _compare(kind, body, file, effort)]


def _compare(kind: str, body: bytes, file: Path, effort: Effort) -> Iterator[Result]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "models" / "camera").mkdir(parents=True)
        shutil.copyfile(file, folder / "models" / "camera" / "mobilenet.tflite")
        (folder / "models" / "camera" / "model.toml").write_text(MANIFEST)
        (folder / "frame").write_bytes(body)
        stack.enter_context(pinned(CLIENT_CORE))
        ours = stack.enter_context(our_server(folder / "models", "--threads", "1"))
        steps = ("task", str(folder / "models" / "camera"), str(folder / "frame"), QUERIES[kind])
        child, _ = stack.enter_context(module("labels", *steps))
        path = f"/predictions/camera?{QUERIES[kind]}&stream=camera"
        _check(ours.socket, path, body, child)
        one_s = statistics.median(ask(child, "") for _ in range(effort.of(0.05).rounds)) / 1e6
        paces = {f"{USUAL_RATE:g} frames a second": USUAL_RATE, "twice the model's speed": TIMES_CAPACITY / one_s}
        measured = {pace: _measure(ours.socket, path, body, child, rate, effort) for pace, rate in paces.items()}
    for pace, rounds in measured.items():
        yield from _results(f"{kind} 640x480, {pace}", rounds)


def _check(port: int, path: str, body: bytes, child: subprocess.Popen[bytes]) -> None:
    call = calls.framed_raw(port, path, body)
    try:
        calls.check(call)
        ext = HEADER.unpack_from(call.answer())[6]
        check_labels(child, strict_json.loads_object(call.answer()[HEADER_BYTES + ext :]))
    finally:
        call.close()


def _measure(port: int, path: str, body: bytes, child: subprocess.Popen[bytes], rate: float, effort: Effort) -> Rounds:
    """Offer the frames to the server and to the process in turn.

    The core beside them spins in either, where frames come fast: it spins to send them in time.
    """
    seconds, count = (0.4, 1) if effort is QUICK else (2.0, 5)
    measured = Rounds()
    for number in range(count):
        say(f"{path}, {rate:.0f} frames a second, {number + 1} of {count}")
        call = calls.framed_raw(port, path, body)
        try:
            measured.loads.append(open_load([call], rate, seconds))
        finally:
            call.close()
        alone = _ask_camera(child, rate, seconds)
        measured.rates.append(len(alone["ages"]) / seconds)
        measured.ages += alone["ages"]
        measured.runs += alone["runs"]
    return measured


def _ask_camera(child: subprocess.Popen[bytes], rate: float, seconds: float) -> Any:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{rate} {seconds}\n".encode())
    child.stdin.flush()
    while not select.select([child.stdout], [], [], None if rate == USUAL_RATE else 0)[0]:
        pass
    return json.loads(child.stdout.readline())


def _results(what: str, measured: Rounds) -> Iterator[Result]:
    loads = measured.loads
    ages = [age for load in loads for age in load.believed(OK)]
    rates = [load.goodput for load in loads]
    superseded = sum(len(load.with_status(SUPERSEDED)) for load in loads)
    doubted = 100 * statistics.fmean(load.doubted for load in loads)
    if not ages:
        yield Missing("V1", what, f"none of {sum(len(load.answers) for load in loads)} answers can be believed")
        return
    yield Comparison("V1", what, "/s", rates, measured.rates, RATE_GOAL, "least", "the same steps in one process")
    aged = f"age of an answer, {what} ({superseded} superseded, {doubted:.1f} % left out)"
    yield Comparison("V1", aged, "ms", ages, measured.runs, AGE_GOAL, against="one run")
    one = [statistics.median(measured.runs)]
    yield Comparison("V1", f"age, {what}", "ms", ages, one, LATE_GOAL, against="one run's median", statistic="p99")
    yield Comparison("V1", f"age, {what}", "ms", ages, measured.ages, None, against="age in one process")


def nv21() -> bytes:
    """A frame as Android's cameras give it: brightness, then V and U by turns for each four pixels."""
    width, height = SIZE
    luma, blue, red = scene(width, height).convert("YCbCr").split()
    colours = [np.asarray(plane.reduce(2)) for plane in (red, blue)]
    return bytes(luma.tobytes() + np.stack(colours, axis=-1).tobytes())
