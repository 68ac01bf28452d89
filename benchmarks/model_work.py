"""M1 and T1: a real model over the socket, against the same model invoked in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import calls
from benchmarks.load import closed_loop
from benchmarks.processes import CLIENT_CORE, ROOT, Ours, module, our_server, pinned
from benchmarks.samples import Comparison, Result
from benchmarks.timing import QUICK, Effort, interleave

M1_GOAL, T1_GOAL = 1.10, 0.9
CONNECTIONS = 8


def run_m1(effort: Effort) -> list[Result]:
    """One connection, one thread."""
    with _sides() as (ours, child, name, values, label), pinned(CLIENT_CORE):
        call = calls.framed(ours.socket, "model", values, greet=True, name=name)
        calls.check(call, is_http=False)
        alone: list[float] = []

        def in_process() -> None:
            alone.append(_ask(child, ""))

        samples = interleave({"ours": call, "in process": in_process}, effort)
        call.close()
    kept = alone[-len(samples["ours"]) :]
    return [Comparison("M1", f"{label} over the socket", "µs", samples["ours"], kept, M1_GOAL, against="invoke alone")]


def run_t1(effort: Effort) -> list[Result]:
    """Eight connections that ask without a pause, on one core of the server's, in turn with the model alone."""
    seconds, rounds = (0.3, 2) if effort is QUICK else (3.0, 5)
    served, alone = [], []
    with _sides() as (ours, child, name, values, label), pinned(CLIENT_CORE):
        opened = [calls.framed(ours.socket, "model", values, greet=True, name=name) for _ in range(CONNECTIONS)]
        for call in opened:
            calls.check(call, is_http=False)
        for _ in range(rounds):
            served.append(closed_loop(opened, seconds).rate)
            alone.append(_ask(child, str(seconds)))
        for call in opened:
            call.close()
    what = f"{label}, {CONNECTIONS} connections, per second"
    return [Comparison("T1", what, "/s", served, alone, T1_GOAL, "least", against="invoke alone, as many threads")]


def find_mobilenet() -> Path | None:
    """MobileNet v1 0.25 as TFLite in the folder of public test models, where tests/README.md says it may lie."""
    named = os.environ.get("POCKETSERVE_TEST_ASSETS")
    for assets in [Path(named)] if named else sorted(ROOT.parent.glob("*/assets")):
        found = sorted(assets.glob("models/tflite/mobilenet_v1_0.25*float*.tflite"))
        if found:
            return found[0]
    return None


@contextmanager
def _sides() -> Iterator[tuple[Ours, subprocess.Popen[bytes], str, np.ndarray, str]]:
    """Our server, the model alone, its input's name, values for it, and what to call it in the table."""
    found = find_mobilenet()
    file = found or ROOT / "models" / "digits" / "digits.tflite"
    label = "MobileNet v1 0.25" if found else "digits (no MobileNet here)"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "model.tflite")
        shutil.copyfile(file, copy)
        with our_server(Path(folder), "--threads", "1") as ours, module("inprocess", str(copy)) as (child, _):
            yield ours, child, input_name(copy), _values(copy), label


def _values(file: Path) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter

    taken = Interpreter(str(file)).get_input_details()[0]
    if taken["dtype"] is not np.float32:
        raise RuntimeError(f"{file.name} takes no FP32")
    return np.random.default_rng(5).random([int(size) for size in taken["shape"]], np.float32)


def input_name(file: Path) -> str:
    """The name of a TFLite file's input."""
    from ai_edge_litert.interpreter import Interpreter

    return str(Interpreter(str(file)).get_input_details()[0]["name"])


def _ask(child: subprocess.Popen[bytes], line: str) -> float:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{line}\n".encode())
    child.stdin.flush()
    return float(child.stdout.readline())
