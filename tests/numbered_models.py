"""Make small models in numbered folders, identifiable by their answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

BROKEN = b"\x08\x08no model at all"
BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
).encode()
DEADLINE_S = 120.0


def times(factor: float, padding: int = 0) -> bytes:
    """Return an ONNX model that multiplies its input.

    Further numbers make it larger and slower to load.
    """
    import numpy as np
    import onnx

    helper = onnx.helper
    float32 = onnx.TensorProto.FLOAT
    ends = [
        helper.make_tensor_value_info(name, float32, ["n", 1]) for name in ("x", "y")
    ]
    constants = [helper.make_tensor("k", float32, [1], [factor])]
    nodes = [helper.make_node("Mul", ["x", "k"], ["y"])]
    if padding:
        zeros = np.zeros(padding, np.float32).tobytes()
        constants.append(
            helper.make_tensor("padding", float32, [padding], zeros, raw=True)
        )
        nodes = [
            helper.make_node("ReduceSum", ["padding"], ["zero"], keepdims=0),
            helper.make_node("Mul", ["x", "k"], ["product"]),
            helper.make_node("Add", ["product", "zero"], ["y"]),
        ]
    graph = helper.make_graph(nodes, "times", ends[:1], ends[1:], constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    return bytes(model.SerializeToString())


def sum_of_files(folder: Path, values: dict[str, float]) -> None:
    """Write the files of :func:`external`, each with one weight."""
    import numpy as np

    for name, value in values.items():
        (folder / name).write_bytes(np.float32(value).tobytes())


def external(names: tuple[str, ...]) -> bytes:
    """Return an ONNX model that adds its input to the sum of weights in files."""
    import onnx

    helper = onnx.helper
    float32 = onnx.TensorProto.FLOAT
    ends = [
        helper.make_tensor_value_info(name, float32, ["n", 1]) for name in ("x", "y")
    ]
    weights = []
    for name in names:
        weight = onnx.TensorProto(name=name, data_type=float32, dims=[1])
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=name)
        weights.append(weight)
    steps = ["x", *(f"s{number}" for number in range(len(names) - 1)), "y"]
    nodes = [
        helper.make_node("Add", [steps[number], name], [steps[number + 1]])
        for number, name in enumerate(names)
    ]
    graph = helper.make_graph(nodes, "sum", ends[:1], ends[1:], weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    return bytes(model.SerializeToString())


def put(root: Path, version: int, content: bytes, model: str = "m") -> Path:
    """Write a version's folder in one step, and return it."""
    folder = root / model / str(version)
    partial = root / model / f".{version}"
    partial.mkdir(parents=True)
    (partial / "model.onnx").write_bytes(content)
    partial.rename(folder)
    return folder


def answer_of(
    call: Callable[..., Any], path: str = "/v2/models/m/infer"
) -> tuple[int, str, Any]:
    """Return status, version and value of an answer; or status, code and sentence."""
    response = call("POST", path, data=BODY)
    body = response.json()
    if response.status_code != 200:
        return response.status_code, body["code"], body["error"]
    return 200, body["model_version"], body["outputs"][0]["data"][0]


def await_that(condition: Callable[[], bool]) -> None:
    """Wait for another process without an event."""
    deadline = time.monotonic() + DEADLINE_S
    pause = Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.02)
