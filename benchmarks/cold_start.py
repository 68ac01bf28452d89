"""C1: from process start to the first answer, against a script that imports the runtime, loads and predicts."""

from __future__ import annotations

import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.processes import pocketserve, script
from benchmarks.samples import Comparison
from benchmarks.timing import Effort

ROUNDS = 9
GOAL = 1.5
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
BODY = b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,8,8,1],"data":[' + b",".join([b"0"] * 64) + b"]}]}"


def run(effort: Effort) -> list[Comparison]:
    """Start both sides in turn, each as a new process; the first round, which writes bytecode, is left out."""
    models = Path(__file__).resolve().parents[1] / "models"
    ours, floor = [], []
    for _ in range(min(ROUNDS, effort.rounds) + 1):
        started = time.perf_counter()
        with pocketserve(models, "--threads", "1") as (_, port):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/digits/infer", BODY, timeout=30).read()
            ours.append((time.perf_counter() - started) * 1e3)
        started = time.perf_counter()
        with script(FLOOR, str(models / "digits" / "digits.tflite")) as (_, answer):
            floor.append((time.perf_counter() - started) * 1e3)
            if not answer:
                sys.exit("the floor's script failed; is ai-edge-litert installed?")
    return [Comparison("C1", "process start to first answer, digits", "ms", ours[1:], floor[1:], GOAL)]
