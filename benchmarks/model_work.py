"""M1 and T1: a real model over the socket and in process."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks import calls
from benchmarks.load import closed_loop
from benchmarks.processes import CLIENT_CORE, ROOT, Ours, module, our_server, pinned
from benchmarks.samples import Comparison, Result
from benchmarks.servers.inprocess import random_input
from benchmarks.timing import QUICK, Effort, interleave

M1_GOAL, T1_GOAL = 1.10, 0.9
CONNECTIONS = 8
FLOAT, QUANTIZED = "mobilenet_v1_0.25*float*", "mobilenet_v1_0.25*quant*"


def run_m1(effort: Effort) -> list[Result]:
    """Measure one connection with float and quantized models."""
    results = _run_m1(find_mobilenet(), effort)
    quantized = find_mobilenet(QUANTIZED)
    return [*results, *(_run_m1(quantized, effort) if quantized else ())]


def _run_m1(file: Path | None, effort: Effort) -> list[Result]:
    with ExitStack() as stack:
        ours, child, name, values, label = stack.enter_context(_sides(file))
        stack.enter_context(pinned(CLIENT_CORE))
        call = calls.framed(ours.socket, "model", values, greet=True, name=name)
        stack.callback(call.close)
        calls.check(call)
        alone: list[float] = []
        sides: dict[str, Callable[[], object]] = {
            "ours": call,
            "in process": lambda: alone.append(ask(child, "")),
        }
        if file is not None and values.dtype == np.float32:
            _, port = stack.enter_context(module("bare", "framed", str(file)))
            sides["bare"] = calls.framed(port, "model", values, greet=False, name=name)
        samples = interleave(sides, effort)
    title = f"{label}, {values.nbytes:,} B in, over the socket"
    floor = alone[-len(samples["ours"]) :]  # without those of the warm-up
    return _m1_results(title, samples, floor)


def _m1_results(
    title: str, samples: dict[str, list[float]], floor: list[float]
) -> list[Result]:
    ours = samples["ours"]
    alone = "invoke alone"
    results: list[Result] = [
        Comparison("M1", title, "µs", ours, floor, M1_GOAL, against=alone)
    ]
    if "bare" in samples:
        bare = samples["bare"]
        handler = "same behind a bare framed handler"
        results += [
            Comparison("M1", handler, "µs", bare, floor, None, against=alone),
            Comparison(
                "M1",
                title,
                "µs",
                ours,
                bare,
                None,
                against="bare framed handler, same model",
            ),
        ]
    return results


def run_t1(effort: Effort) -> list[Result]:
    """Measure eight busy connections on one core."""
    seconds, rounds = (0.3, 2) if effort is QUICK else (3.0, 5)
    served = []
    alone = []
    busy = []
    with (
        _sides(find_mobilenet()) as (ours, child, name, values, label),
        pinned(CLIENT_CORE),
    ):
        opened = [
            calls.framed(ours.socket, "model", values, greet=True, name=name)
            for _ in range(CONNECTIONS)
        ]
        for call in opened:
            calls.check(call)
        for _ in range(rounds):
            began = time.process_time()
            load = closed_loop(opened, seconds)
            busy.append((time.process_time() - began) / load.seconds)
            served.append(load.rate)
            alone.append(ask(child, str(seconds)))
        for call in opened:
            call.close()
    # The generator's own core isn't available to the bare model either.
    what = f"{label}, {CONNECTIONS} connections (generator {100 * statistics.fmean(busy):.0f} % of its core)"
    return [
        Comparison(
            "T1",
            what,
            "/s",
            served,
            alone,
            T1_GOAL,
            "least",
            against="invoke alone, same core",
        )
    ]


def find_mobilenet(name: str = FLOAT) -> Path | None:
    """Find MobileNet v1 0.25 among the public test models."""
    named = os.environ.get("POCKETSERVE_TEST_ASSETS")
    for assets in [Path(named)] if named else sorted(ROOT.parent.glob("*/assets")):
        found = sorted(assets.glob(f"models/tflite/{name}.tflite"))
        if found:
            return found[0]
    return None


@contextmanager
def _sides(
    found: Path | None,
) -> Iterator[tuple[Ours, subprocess.Popen[bytes], str, np.ndarray, str]]:
    """Return both sides, the input and the title."""
    file = found or ROOT / "models" / "digits" / "digits.tflite"
    label = "digits (no MobileNet here)"
    if found:
        label = "MobileNet v1 0.25"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "model.tflite")
        shutil.copyfile(file, copy)
        with (
            our_server(Path(folder), "--threads", "1") as ours,
            module("inprocess", str(copy)) as (child, _),
        ):
            yield ours, child, input_name(copy), random_input(str(copy)), label


def input_name(file: Path) -> str:
    """The name of a TFLite file's input."""
    from ai_edge_litert.interpreter import Interpreter

    return str(Interpreter(str(file)).get_input_details()[0]["name"])


def ask(child: subprocess.Popen[bytes], line: str) -> float:
    """One answer of the module ``inprocess``."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{line}\n".encode())
    child.stdin.flush()
    return float(child.stdout.readline())
