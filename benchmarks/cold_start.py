"""C1: from process start to the first answer."""

from __future__ import annotations

import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import IO

from benchmarks import imports
from benchmarks.processes import our_server, script
from benchmarks.samples import Comparison, Imports, Result
from benchmarks.timing import Effort

ROUNDS = 9
FIRST_GOAL, GOAL = 1.6, 1.5
FLOOR = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
interpreter = Interpreter(sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.zeros((1, 8, 8, 1), np.float32))
interpreter.invoke()
print(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).argmax(), flush=True)
sys.stdin.read()
"""
BODY = (
    b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,8,8,1],"data":['
    + b",".join([b"0"] * 64)
    + b"]}]}"
)


MODELS = Path(__file__).resolve().parents[1] / "models"
IMPORT_RUNS = 3


def run(effort: Effort) -> list[Result]:
    """Start all sides in turns, ignoring the first round.

    A first start has an empty state folder, so that the model is tried before it is loaded; a second one knows it.
    """
    first = []
    second = []
    floor = []
    for _ in range(min(ROUNDS, effort.rounds) + 1):
        with tempfile.TemporaryDirectory() as state:
            for starts in (first, second):
                starts.append(_start_ms({"POCKETSERVE_STATE_DIR": state}))
        started = time.perf_counter()
        with script(FLOOR, str(MODELS / "digits" / "digits.tflite")) as (_, answer):
            floor.append((time.perf_counter() - started) * 1e3)
            if not answer:
                sys.exit("the floor's script failed; is ai-edge-litert installed?")
    rows = (("first", first, FIRST_GOAL), ("second", second, GOAL))
    return [
        *(
            Comparison(
                *(
                    "C1",
                    f"{start} start to its first answer, digits",
                    "ms",
                    times[1:],
                    floor[1:],
                    goal,
                ),
                against="a script: import, load, predict",
            )
            for start, times, goal in rows
        ),
        _imports(),
    ]


def _start_ms(environment: dict[str, str]) -> float:
    started = time.perf_counter()
    with our_server(MODELS, "--threads", "1", environment=environment) as server:
        ask_digits(server.http)
        return (time.perf_counter() - started) * 1e3


def ask_digits(port: int) -> None:
    """Ask the embedded digits once, by HTTP and JSON."""
    urllib.request.urlopen(
        f"http://127.0.0.1:{port}/v2/models/digits/infer", BODY, timeout=30
    ).read()


def _imports() -> Imports:
    """Return the imports of both sides until the first answer.

    They are recorded apart from the timed starts, which recording would slow down.
    """
    ours = []
    floor = []
    for _ in range(IMPORT_RUNS):
        with tempfile.TemporaryFile() as log:
            with our_server(
                MODELS, "--threads", "1", environment=imports.PROFILED, log=log
            ) as server:
                ask_digits(server.http)
            ours.append(_self_times(log))
        with tempfile.TemporaryFile() as log:
            with script(
                FLOOR,
                str(MODELS / "digits" / "digits.tflite"),
                environment=imports.PROFILED,
                log=log,
            ):
                pass
            floor.append(_self_times(log))
    return imports.compare("C1", imports.lowest(ours), imports.lowest(floor))


def _self_times(log: IO[bytes]) -> dict[str, int]:
    log.seek(0)
    return imports.self_times(log.read().decode(errors="replace"))
