"""H1: what our HTTP path adds to a bare Flask handler on waitress that takes and gives the same bytes."""

from __future__ import annotations

import http.client
import os
import time
from pathlib import Path

import numpy as np

from benchmarks.processes import pin, pocketserve, script
from benchmarks.samples import Comparison
from pocketserve_wire import Tensor, oip

ROUNDS = 600
WARM_UP = 100
MODEL = "digits"
GOAL = 1.0

FLOOR = """
import json, sys
from flask import Flask, Response, request
from waitress import create_server
import numpy as np
from ai_edge_litert.interpreter import Interpreter

app = Flask("floor")
interpreter = Interpreter(sys.argv[1], num_threads=1)
rows = int(sys.argv[2])
interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], [rows, 8, 8, 1])
interpreter.allocate_tensors()
taken, given = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

@app.post("/v2/models/<name>/infer")
def infer(name):
    body = request.get_data(cache=False)
    length = int(request.headers["Inference-Header-Content-Length"])
    header = json.loads(body[:length])
    shape = header["inputs"][0]["shape"]
    interpreter.set_tensor(taken, np.frombuffer(body, "<f4", offset=length).reshape(shape))
    interpreter.invoke()
    scores = interpreter.get_tensor(given)
    answer = {"model_name": name, "outputs": [{"name": "scores", "datatype": "FP32", "shape": list(scores.shape),
              "parameters": {"binary_data_size": scores.nbytes}}]}
    text = json.dumps(answer).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return Response(text + scores.tobytes(), headers=headers, content_type="application/octet-stream")

server = create_server(app, host="127.0.0.1", port=0, threads=4)
print(server.effective_port, flush=True)
server.run()
"""


def run() -> list[Comparison]:
    """Compare for one row (256 B in) and for 588 rows (150,528 B in, the size of a photo)."""
    models = Path(__file__).resolve().parents[1] / "models"
    pin(os.getpid(), 0)
    return [_compare(models, rows, what) for rows, what in ((1, "one row, 256 B in"), (588, "588 rows, 150,528 B in"))]


def _compare(models: Path, rows: int, what: str) -> Comparison:
    body, headers = _request(rows)
    floor_arguments = (str(models / MODEL / "digits.tflite"), str(rows))
    with pocketserve(models, "--threads", "1") as (_, port), script(FLOOR, *floor_arguments) as (_, floor_port):
        ours, floor = _connect(port), _connect(int(floor_port))
        samples: tuple[list[float], list[float]] = ([], [])
        for turn in range(ROUNDS + WARM_UP):
            for connection, kept in zip((ours, floor), samples, strict=True):
                elapsed = _time_one(connection, body, headers)
                if turn >= WARM_UP:
                    kept.append(elapsed)
    return Comparison("H1", f"HTTP, digits, {what}", "µs", *samples, goal=GOAL)


def _request(rows: int) -> tuple[bytes, dict[str, str]]:
    data = memoryview(np.zeros(rows * 64, np.float32)).cast("B")
    request = oip.InferRequest(inputs=[Tensor("image", "FP32", (rows, 8, 8, 1), data)], binary_output=True)
    encoded = oip.encode_infer_request(request)
    headers = {"Inference-Header-Content-Length": str(encoded.json_length), "Content-Type": "application/octet-stream"}
    return b"".join(encoded.chunks), headers


def _connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def _time_one(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> float:
    started = time.perf_counter()
    connection.request("POST", f"/v2/models/{MODEL}/infer", body, headers)
    response = connection.getresponse()
    answer = response.read()
    elapsed = time.perf_counter() - started
    if response.status != 200:
        raise RuntimeError(answer.decode(errors="replace"))
    return elapsed * 1e6
