"""A picture to labels in one process, without a server: ``MODE MODEL FILE QUERY``.

``pillow`` is a script of Pillow, NumPy and the model. With a query such as
``PNG,1200,1900`` it also draws the labels below the picture, and encodes a picture of
that size. ``task`` is our own task's functions and the model's session, with nothing
around them; MODEL may then be a folder with a manifest.

For each line on standard input one line is printed: for an empty line the microseconds
of one run; for ``labels`` the labels of an answer; for ``RATE SECONDS`` the result of a
camera with that many frames a second, whose newest frame is always the next one.
"""

from __future__ import annotations

import json
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

TOP_K = 5
Run = Callable[[], list[dict[str, Any]]]


def main(mode: str, model: str, file: str, query: str = "") -> None:
    """Load, print 0 in the place of a port, serve."""
    body = Path(file).read_bytes()
    with ExitStack() as stack:
        run = (
            pillow_run(Path(model), body, query)
            if mode == "pillow"
            else task_run(stack, model, body, query)
        )
        run()
        print(0, flush=True)
        for line in sys.stdin:
            print(json.dumps(_answer(run, line.split())), flush=True)


def _answer(run: Run, words: list[str]) -> Any:
    if not words:
        return _seconds(run) * 1e6
    if words == ["labels"]:
        return [entry["label"] for entry in run()]
    return camera(run, *map(float, words))


def _seconds(run: Run) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def camera(run: Run, rate: float, seconds: float) -> dict[str, list[float]]:
    """Answer the newest frame again and again.

    Returns:
        ``ages``: milliseconds from each answered frame's arrival to its answer; ``runs``:
        milliseconds of the work on it.
    """
    ages: list[float] = []
    runs: list[float] = []
    began = time.perf_counter()
    last = -1
    while (now := time.perf_counter() - began) < seconds:
        newest = int(now * rate)
        if newest == last:
            time.sleep(max(0.0, (last + 1) / rate - now))
            continue
        last = newest
        runs.append(1e3 * _seconds(run))
        ages.append(1e3 * (time.perf_counter() - began - newest / rate))
    return {"ages": ages, "runs": runs}


def task_run(stack: ExitStack, model: str, body: bytes, query: str) -> Run:
    """Return the server's own functions from bytes to labels."""
    from pocketserve.tasks.parameters import hints_and_options
    from pocketserve.terminal.local import open_local

    service, name, version = open_local(model, None, threads=1)
    stack.callback(service.close)
    _, handle = stack.enter_context(service.running(name, version))
    task = handle.model.task
    session = handle.model.sessions[0]
    hints, options = hints_and_options(dict(parse_qsl(query)), "")

    def run() -> list[dict[str, Any]]:
        prepared = task.prepare(memoryview(body), hints)
        answer = task.answer(
            [session.run(arrays) for arrays in prepared.runs], options, prepared.context
        )
        assert isinstance(answer, list)
        return answer

    return run


def pillow_run(model: Path, body: bytes, drawing: str) -> Run:
    """Return a typical script for a TensorFlow Lite file."""
    from benchmarks.pictures import pillow_alone, pillow_drawn
    from benchmarks.servers.bodies import work

    compute = work(str(model))
    with zipfile.ZipFile(model) as archive:
        labels = archive.read(archive.namelist()[0]).decode().splitlines()

    def run() -> list[dict[str, Any]]:
        values = pillow_alone(body).astype(np.float32)
        values -= 127.5
        values /= 127.5
        scores = compute(values[np.newaxis])[0]
        best = np.argsort(-scores)[:TOP_K]
        entries = []
        for index in best:
            entries.append(
                {
                    "label": labels[index],
                    "index": int(index),
                    "score": float(scores[index]),
                }
            )
        if drawing:
            kind, width, height = drawing.split(",")
            pillow_drawn(body, entries, kind, int(width), int(height))
        return entries

    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
