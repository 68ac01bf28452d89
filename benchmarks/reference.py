"""The reference work: tiny models with negligible cost.

``echo-N`` takes N bytes of FP32 and returns 1,001 FP32 (4,004 B): a fixed ramp times the
input's first element. In TensorFlow Lite it has three operators (SLICE, MUL, RESHAPE);
the floors and peers compute the same with NumPy. ``work`` and ``work-heavy`` take 2,048 B
and multiply it repeatedly by a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 1001
# 150,528 B: a picture of 224 x 224 x 3 bytes, carried as FP32.
PHOTO = 3 * 224 * 224 // 4
SMALL = 16
SIZES = {
    f"echo-{4 * count}": count
    for count in (SMALL, 1024, 16_384, PHOTO, 262_144, 1_048_576, 4_194_304)
}
"""Elements by model name: 64 B, 4 kB, 64 kB, the photo, 1 MB, 4 MB, 16 MB."""

PHOTO_MODEL = f"echo-{4 * PHOTO}"
SMALL_MODEL = f"echo-{4 * SMALL}"
WORK_WIDTH = 512
WORK_LAYERS = {"work": 48, "work-heavy": 240}
"""Layers by model name: 1 and 5 ms on a core of a server, several times as much on a phone's."""
RAMP = np.linspace(0.0, 1.0, CLASSES, dtype=np.float32)


def ramp_times(values: Any) -> Any:
    """The reference computation on an FP32 array: [1, 1001] FP32."""
    return (RAMP * values.reshape(-1)[0]).reshape(1, CLASSES)


def write_models(folder: Path) -> Path:
    """Write missing reference models; return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in SIZES.items():
        write_once(folder / f"{name}.tflite", lambda count=count: echo_model(count))
    for name, layers in WORK_LAYERS.items():
        write_once(folder / f"{name}.tflite", lambda layers=layers: work_model(layers))
    return folder


def write_once(path: Path, make: Any) -> None:
    """Write the result of ``make()``, unless the file exists."""
    if not path.exists():
        path.write_bytes(make())


class Graph:
    """A TensorFlow Lite graph under construction."""

    def __init__(self) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema = schema
        self.tree = schema.ModelT()
        self.tree.version = 3
        self.tree.buffers = [schema.BufferT()]
        self.tree.operatorCodes = []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.tree.subgraphs = [self.graph]

    def tensor(
        self, name: str, shape: Sequence[int], values: Any = None, *, free: bool = False
    ) -> int:
        """Add a tensor, constant when it has values; returns its index.

        Args:
            free: whether its first dimension is dynamic.
        """
        item = self.schema.TensorT()
        item.name, item.shape, item.buffer = name.encode(), list(shape), 0
        item.type = self.schema.TensorType.FLOAT32
        if free:
            item.shapeSignature = [-1, *shape[1:]]
        if values is not None:
            if values.dtype == np.int32:
                item.type = self.schema.TensorType.INT32
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(values.tobytes(), np.uint8)
            self.tree.buffers.append(buffer)
            item.buffer = len(self.tree.buffers) - 1
        self.graph.tensors.append(item)
        return len(self.graph.tensors) - 1

    def operator(
        self, kind: str, taken: Sequence[int], given: int, options: str = ""
    ) -> None:
        """Add an operator, named as in the schema, with default options."""
        code = self.schema.OperatorCodeT()
        code.builtinCode = getattr(self.schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = code.builtinCode
        code.version = 1
        self.tree.operatorCodes.append(code)
        item = self.schema.OperatorT()
        item.opcodeIndex = len(self.tree.operatorCodes) - 1
        item.inputs = list(taken)
        item.outputs = [given]
        if options:
            item.builtinOptionsType = getattr(self.schema.BuiltinOptions, options)
            item.builtinOptions = getattr(self.schema, f"{options}T")()
        self.graph.operators.append(item)

    def finish(self, taken: int, given: int) -> bytes:
        """The file's bytes."""
        import flatbuffers

        self.graph.inputs, self.graph.outputs = [taken], [given]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.tree.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def echo_model(count: int) -> bytes:
    """Return ``ramp_times`` for inputs of a size."""
    shape = [1, 3, 112, 112] if count == PHOTO else [1, 1, 1, count]
    graph = Graph()
    image = graph.tensor("x", shape)
    begin = graph.tensor("begin", [4], np.zeros(4, np.int32))
    size = graph.tensor("size", [4], np.ones(4, np.int32))
    first = graph.tensor("first", [1, 1, 1, 1])
    ramp = graph.tensor("ramp", [1, 1, 1, CLASSES], RAMP)
    wide = graph.tensor("wide", [1, 1, 1, CLASSES])
    flat = graph.tensor("flat", [2], np.array([1, CLASSES], np.int32))
    scores = graph.tensor("scores", [1, CLASSES])
    graph.operator("SLICE", [image, begin, size], first, "SliceOptions")
    graph.operator("MUL", [first, ramp], wide, "MulOptions")
    graph.operator("RESHAPE", [wide, flat], scores)
    return graph.finish(image, scores)


def work_matrix() -> np.ndarray:
    """Orthogonal, so that a long chain of it overflows nowhere."""
    drawn = np.random.default_rng(1).normal(size=(WORK_WIDTH, WORK_WIDTH))
    return np.linalg.qr(drawn)[0].astype(np.float32)


def work_model(layers: int, *, free: bool = False) -> bytes:
    """A chain of fully connected layers that share one matrix.

    Args:
        free: whether it takes any number of rows.
    """
    graph = Graph()
    weights = graph.tensor("weights", [WORK_WIDTH, WORK_WIDTH], work_matrix())
    taken = given = graph.tensor("x", [1, WORK_WIDTH], free=free)
    for layer in range(layers):
        before = given
        given = graph.tensor(f"y{layer}", [1, WORK_WIDTH], free=free)
        graph.operator(
            "FULLY_CONNECTED", [before, weights, -1], given, "FullyConnectedOptions"
        )
    return graph.finish(taken, given)
