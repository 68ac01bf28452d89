"""E1: the same folder on multi-process engines."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import calls as call_to
from benchmarks import reference
from benchmarks.load import closed_loop
from benchmarks.model_work import ask
from benchmarks.overhead import models, values_for
from benchmarks.overload import VALUES
from benchmarks.peers import ensure_environment
from benchmarks.processes import (
    ROOT,
    StartError,
    free_port,
    module,
    our_server,
    process,
)
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.timing import QUICK, Effort, interleave, say
from benchmarks.triton import triton

PYTHON = ROOT / ".venv-ray" / "bin" / "python"
"""Of the environment ``ray``: every side but Triton, which needs NumPy 1, runs with the same packages."""

PLAIN, GUNICORN, BARE, OURS = (
    "pocketserve serve",
    "gunicorn, 2 workers",
    "bare on Ray",
    "ours on Ray",
)
TRITON = "Triton with our engine"
INGRESSES = {"its own proxy": (), "HAProxy": ("--haproxy",)}
SIZES = {"64 B": reference.SMALL_MODEL, "150,528 B": reference.PHOTO_MODEL}
SLOW = "work-heavy"
CONNECTIONS = 8
GUNICORN_GOAL, RAY_GOAL, WORKERS_GOAL = 1.5, 1.15, 1.4
START_TIMEOUT_S = 180.0
Place = tuple[int, str]
"""A port, and what stands before the path."""


def run(effort: Effort) -> list[Result]:
    """Run all sides on every core, and measure them in turns."""
    try:
        for environment in ("ray", "triton"):
            ensure_environment(environment, install=effort is not QUICK)
        return [
            result
            for name, options in INGRESSES.items()
            for result in _compare(name, options, effort)
        ]
    except StartError as error:
        return [Missing("E1", "engines", str(error))]


def _compare(
    ingress: str, options: tuple[str, ...], effort: Effort
) -> Iterator[Result]:
    for size, model in SIZES.items():
        with _sides(model, options) as places:
            samples = _latencies(places, model, values_for(model), effort)
        yield from _ratios(f"{size}, Ray by {ingress}", samples)
    with _sides(SLOW, options) as places:
        yield from _rates(
            f"model of 5 ms, 8 connections, Ray by {ingress}", places, effort
        )


def _latencies(
    places: Mapping[str, Place], model: str, values: np.ndarray, effort: Effort
) -> dict[str, list[float]]:
    say(model)
    with ExitStack() as stack:
        sides: dict[str, Callable[[], object]] = {}
        for name, place in places.items():
            sides[name] = call = _call(place, model, values)
            stack.callback(call.close)
            call_to.check(call)
        return interleave(sides, effort)


def _call(place: Place, model: str, values: np.ndarray) -> call_to.Call:
    port, prefix = place
    return call_to.http_binary(port, model, values, prefix)


def _ratios(what: str, samples: Mapping[str, list[float]]) -> Iterator[Result]:
    yield Comparison(
        "E1",
        f"gunicorn, {what}",
        "µs",
        samples[GUNICORN],
        samples[PLAIN],
        GUNICORN_GOAL,
        against=PLAIN,
    )
    yield Comparison(
        "E1",
        f"ours on Ray, {what}",
        "µs",
        samples[OURS],
        samples[BARE],
        RAY_GOAL,
        against=BARE,
    )
    for side in (OURS, TRITON):
        yield Comparison(
            "E1",
            f"{side}, {what}",
            "µs",
            samples[side],
            samples[PLAIN],
            None,
            against=PLAIN,
        )


def _rates(what: str, places: Mapping[str, Place], effort: Effort) -> Iterator[Result]:
    """Measure alternating blocks; the bare model bounds the workers."""
    rates, alone = _measure_rates(what, places, effort)
    pairs = (
        (GUNICORN, PLAIN, WORKERS_GOAL),
        (OURS, PLAIN, None),
        (OURS, BARE, None),
        (TRITON, PLAIN, None),
    )
    for side, floor, goal in pairs:
        title = f"{side}, {what}"
        yield Comparison(
            "E1", title, "/s", rates[side], rates[floor], goal, "least", floor
        )
    one, two = alone
    title = f"the model alone, 2 processes, {what}"
    yield Comparison("E1", title, "/s", two, one, None, "least", "1 process")


def _measure_rates(
    what: str, places: Mapping[str, Place], effort: Effort
) -> tuple[dict[str, list[float]], list[list[float]]]:
    """Return rates by side, and those of the model in one and two processes."""
    seconds, rounds = (0.3, 1) if effort is QUICK else (3.0, 8)
    rates: dict[str, list[float]] = {name: [] for name in places}
    alone: list[list[float]] = [[], []]
    with ExitStack() as stack:
        file = str(models() / f"{SLOW}.tflite")
        children = []
        for _ in alone:
            child, _ = stack.enter_context(module("inprocess", file, core=None))
            children.append(child)
        pool = stack.enter_context(ThreadPoolExecutor(len(children)))
        opened = {name: _open_calls(stack, place) for name, place in places.items()}
        run_alone = partial(ask, line=str(seconds))
        for _ in range(rounds):
            for name, own in opened.items():
                say(f"{name}, {what}")
                rates[name].append(closed_loop(own, seconds).rate)
            for count, totals in enumerate(alone, 1):
                totals.append(sum(pool.map(run_alone, children[:count])))
    return rates, alone


def _open_calls(stack: ExitStack, place: Place) -> list[call_to.Call]:
    opened = []
    for _ in range(CONNECTIONS):
        call = _call(place, SLOW, VALUES)
        stack.callback(call.close)
        call_to.check(call)
        opened.append(call)
    return opened


@contextmanager
def _sides(model: str, options: tuple[str, ...]) -> Iterator[dict[str, Place]]:
    """Every engine with a folder of one model, running."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="pocketserve-bench-")
            )
        )
        (folder / "models").mkdir()
        file = folder / "models" / f"{model}.tflite"
        file.write_bytes((models() / file.name).read_bytes())
        plain = stack.enter_context(
            our_server(file.parent, "--threads", "1", core=None, python=str(PYTHON))
        )
        ports = [free_port() for _ in range(2)]
        command = [
            "-m",
            "gunicorn",
            "-c",
            "python:pocketserve_scale.gunicorn",
            "--workers",
            "2",
        ]
        stack.enter_context(_ready(command, folder / "gunicorn", file.parent, ports[0]))
        command = [
            "-m",
            "pocketserve",
            "scale",
            str(file.parent),
            "--replicas",
            "2",
            *options,
        ]
        log = stack.enter_context(
            _ready(command, folder / "ray", file.parent, ports[1])
        )
        _deploy_bare(log, file, folder / "ray")
        theirs = stack.enter_context(triton(file.parent, core=None))
        on_ray = {BARE: (ports[1], "/bare"), OURS: (ports[1], "")}
        yield {
            PLAIN: (plain.http, ""),
            GUNICORN: (ports[0], ""),
            **on_ray,
            TRITON: (theirs, ""),
        }


@contextmanager
def _ready(
    arguments: list[str], folder: Path, models_dir: Path, port: int
) -> Iterator[str]:
    """Run a server until it accepts requests; yield its output."""
    folder.mkdir()
    settings = {
        "MODELS_DIR": models_dir,
        "STATE_DIR": folder,
        "TOKEN_FILE": folder / "token",
    }
    settings |= {
        "READY_FILE": folder / "ready",
        "HTTP_PORT": port,
        "AUTH": 0,
        "THREADS": 1,
        "LOG_LEVEL": "error",
    }
    environment = {
        f"POCKETSERVE_{name}": str(value) for name, value in settings.items()
    }
    output = folder / "output"
    with process([str(PYTHON), *arguments], None, environment, output=output) as child:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (folder / "ready").exists():
            if child.poll() is not None or time.monotonic() > deadline:
                raise StartError(f"{' '.join(arguments[:3])} did not start")
            time.sleep(0.05)
        try:
            yield output.read_text()
        finally:
            child.terminate()  # only the main process, which ends its own in order
            child.wait(START_TIMEOUT_S)


def _deploy_bare(log: str, file: Path, state: Path) -> None:
    address = re.search(r"--address (\S+)", log)
    if address is None:
        raise StartError("Ray did not tell its address")
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "POCKETSERVE_STATE_DIR": str(state),
    }
    command = [str(PYTHON), "-m", "benchmarks.servers.ray_bare", address[1], str(file)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        timeout=START_TIMEOUT_S,
    )
    if done.returncode:
        raise StartError(f"the bare deployment did not start: {done.stderr[-600:]}")
