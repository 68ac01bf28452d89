"""V1: a live camera over the socket and in one process.

Frames of 640 x 480, turned upright, cropped, classified by MobileNet and labelled. The camera gives 30 a second, or
twice as many as the model can answer. Of those our clients' streams send the newest when its predecessor is answered;
or all are sent, and the server answers the newest. The process does not copy, frame or queue anything.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import calls
from benchmarks.model_work import ask, find_mobilenet
from benchmarks.open_load import OK, SUPERSEDED, open_load
from benchmarks.pictures import NO_MOBILENET, SIDEWAYS, check_labels, photo, scene
from benchmarks.processes import CLIENT_CORE, module, our_server, pinned
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.servers.labels import camera
from benchmarks.timing import QUICK, Effort, say
from pocketserve_wire import strict_json
from pocketserve_wire.frames import HEADER, HEADER_BYTES

SIZE = (640, 480)
USUAL_RATE, TIMES_CAPACITY = 30.0, 2
RATE_GOAL, AGE_GOAL, LATE_GOAL = 0.95, 1.3, 2.0
MANIFEST = 'task = "image-classification"\n[image]\nresize = "crop"\n'
QUERIES = {
    "NV21": f"format=nv21&width={SIZE[0]}&height={SIZE[1]}&rotation=90",
    "JPEG": "top_k=5",
}


@dataclass
class Frames:
    """The results of a camera over all rounds.

    Attributes:
        rates: frames answered a second, of each round.
        ages: milliseconds from each answered frame's coming to its answer.
        runs: of asking alone.
    """

    rates: list[float] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)

    def add(self, round_s: float, ages: list[float], runs: list[float]) -> None:
        """Add a round."""
        self.rates.append(len(ages) / round_s)
        self.ages += ages
        self.runs += runs


def run(effort: Effort) -> list[Result]:
    """Measure raw frames and JPEGs."""
    file = find_mobilenet()
    if file is None:
        return [Missing("V1", "live camera", NO_MOBILENET)]
    bodies = {"NV21": nv21(), "JPEG": photo(SIDEWAYS, SIZE)}
    return [
        result
        for kind, body in bodies.items()
        for result in _compare(kind, body, file, effort)
    ]


def _compare(kind: str, body: bytes, file: Path, effort: Effort) -> Iterator[Result]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "models" / "camera").mkdir(parents=True)
        shutil.copyfile(file, folder / "models" / "camera" / "mobilenet.tflite")
        (folder / "models" / "camera" / "model.toml").write_text(MANIFEST)
        (folder / "frame").write_bytes(body)
        stack.enter_context(pinned(CLIENT_CORE))
        ours = stack.enter_context(our_server(folder / "models", "--threads", "1"))
        steps = (
            "task",
            str(folder / "models" / "camera"),
            str(folder / "frame"),
            QUERIES[kind],
        )
        child, _ = stack.enter_context(module("labels", *steps))
        path = f"/predictions/camera?{QUERIES[kind]}&stream=camera"
        _check(ours.socket, path, body, child)
        one_s = (
            statistics.median(ask(child, "") for _ in range(effort.of(0.05).rounds))
            / 1e6
        )
        for rate, pace in (
            (USUAL_RATE, "30 a second"),
            (TIMES_CAPACITY / one_s, "twice the model's speed"),
        ):
            yield from _measure(
                f"{kind} 640x480, {pace}", ours.socket, path, body, child, rate, effort
            )


def _check(port: int, path: str, body: bytes, child: subprocess.Popen[bytes]) -> None:
    with closing(calls.framed_raw(port, path, body)) as call:
        calls.check(call)
        answer = call.answer()
    ext = HEADER.unpack_from(answer)[6]
    check_labels(child, strict_json.loads_object(answer[HEADER_BYTES + ext :]))


def _measure(
    what: str,
    port: int,
    path: str,
    body: bytes,
    child: subprocess.Popen[bytes],
    rate: float,
    effort: Effort,
) -> Iterator[Result]:
    """Offer the frames to server and process in turns."""
    seconds, count = (0.4, 1) if effort is QUICK else (2.0, 5)
    streamed = Frames()
    flooded = Frames()
    alone = Frames()
    superseded = dropped = 0
    for number in range(count):
        say(f"{what}, {number + 1} of {count}")
        with closing(calls.framed_raw(port, path, body)) as call:
            streamed.add(
                seconds, **camera(lambda call=call: calls.check(call), rate, seconds)
            )  # type: ignore[misc]
        alone.add(seconds, **_ask_camera(child, rate, seconds))
        if rate == USUAL_RATE:
            continue
        with closing(calls.framed_raw(port, path, body)) as call:
            load = open_load([call], rate, seconds, drops=True)
        in_time = []
        for seen in load.with_status(OK):
            if seen.came <= load.began + seconds:
                in_time.append(seen)
        flooded.add(seconds, [seen.age_ms for seen in in_time], [])
        superseded += len(load.with_status(SUPERSEDED))
        dropped += load.dropped
    yield from _results(what, streamed, alone)
    if rate != USUAL_RATE:
        yield from _results(
            f"{what}, all sent ({superseded} superseded, {dropped} not taken)",
            flooded,
            alone,
        )


def _ask_camera(child: subprocess.Popen[bytes], rate: float, seconds: float) -> Any:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{rate} {seconds}\n".encode())
    child.stdin.flush()
    return json.loads(child.stdout.readline())


def _results(what: str, ours: Frames, alone: Frames) -> Iterator[Result]:
    if not ours.ages:
        yield Missing("V1", what, "no frame was answered in time")
        return
    one = [statistics.median(alone.runs)]
    yield Comparison(
        "V1",
        what,
        "/s",
        ours.rates,
        alone.rates,
        RATE_GOAL,
        "least",
        "the same in one process",
    )
    yield Comparison(
        "V1", f"{what}, age", "ms", ours.ages, one, AGE_GOAL, against="one run"
    )
    yield Comparison(
        "V1",
        f"{what}, age",
        "ms",
        ours.ages,
        one,
        LATE_GOAL,
        against="one run",
        statistic="p99",
    )
    yield Comparison(
        "V1",
        f"{what}, age",
        "ms",
        ours.ages,
        alone.ages,
        None,
        against="age in one process",
    )


def nv21() -> bytes:
    """Return a frame in Android's camera format."""
    width, height = SIZE
    luma, blue, red = scene(width, height).convert("YCbCr").split()
    colours = [np.asarray(plane.reduce(2)) for plane in (red, blue)]
    return bytes(luma.tobytes() + np.stack(colours, axis=-1).tobytes())
