"""The floors' minimal handling of a body, without checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.reference import ramp_times

Work = Callable[[Any], Any]


def work(kind: str) -> Work:
    """Return the computation: ``numpy``, or a TensorFlow Lite file."""
    if kind == "numpy":
        return ramp_times
    return _tflite(kind)


def _tflite(path: str) -> Work:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=1)
    interpreter.allocate_tensors()
    taken, given = (
        interpreter.get_input_details()[0]["index"],
        interpreter.get_output_details()[0]["index"],
    )

    def run(values: Any) -> Any:
        interpreter.set_tensor(taken, values)
        interpreter.invoke()
        return interpreter.get_tensor(given)

    return run


def answer(body: Any, json_length: int, compute: Work) -> tuple[bytes, Any]:
    """Return JSON part and raw part of an answer."""
    header = json.loads(bytes(body[:json_length]))
    values = np.frombuffer(body, "<f4", offset=json_length).reshape(
        header["inputs"][0]["shape"]
    )
    scores = compute(values)
    output = {
        "name": "scores",
        "datatype": "FP32",
        "shape": list(scores.shape),
        "parameters": {"binary_data_size": scores.nbytes},
    }
    return json.dumps(
        {"model_name": "m", "model_version": "1", "outputs": [output]}
    ).encode(), scores
