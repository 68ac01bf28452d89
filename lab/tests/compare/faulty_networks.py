"""Make a small ONNX classifier with one planted converter fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import PIL.Image
from onnx import TensorProto, helper, numpy_helper

SIZE = 16
CLASSES = 10
MANIFEST = """task = "image-classification"
labels = "labels.txt"

[versions.whole]
file = "whole.onnx"

[versions.faulty]
file = "faulty.onnx"
"""
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)

FAULTS = {
    "none": "",
    "int8 as it should be": "",
    "wants -1 to 1": "preprocessing",
    "wants 0 to 255": "preprocessing",
    "wants ImageNet's mean": "preprocessing",
    "mean and deviation of other data": "preprocessing",
    "mean and deviation by channel": "preprocessing",
    "BGR": "channels",
    "BGR in the weights": "channels",
    "height and width swapped": "layout",
    "flattened as NHWC": "layout",
    "read as NCHW": "layout",
    "range too narrow": "calibration",
    "range too narrow, deep": "calibration",
    "range too wide": "calibration",
    "ReLU missing": "activation",
    "ReLU6 for ReLU": "activation",
    "leaky ReLU for ReLU": "activation",
    "sigmoid for ReLU, deep": "activation",
    "bias missing": "weights",
    "batch normalisation folded wrongly": "weights",
    "overflow": "overflow",
    "average for maximum": "operator",
    "other weights": "operator",
}
"""Fault -> the correct kind of cause; empty without a fault."""


class _Network:
    """Collects nodes and weights."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.last = "image"

    def constant(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, kind: str, *others: Any, **attributes: Any) -> None:
        inputs = [self.last, *(self.constant(other) for other in others)]
        self.last = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [self.last], **attributes))

    def quantize(self, scale: float) -> None:
        self.add("QuantizeLinear", np.float32(scale), np.int8(0))
        self.add("DequantizeLinear", np.float32(scale), np.int8(0))

    def save(self, path: Path) -> None:
        image = helper.make_tensor_value_info(
            "image", TensorProto.FLOAT, [1, SIZE, SIZE, 3]
        )
        scores = helper.make_tensor_value_info(
            self.last, TensorProto.FLOAT, [1, CLASSES]
        )
        graph = helper.make_graph(self.nodes, "net", [image], [scores], self.weights)
        onnx.save(
            helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
            ),
            path,
        )


def random_weights(random: Any, *shape: int) -> Any:
    """Return random weights that keep the size of signals."""
    scale = np.sqrt(2 / np.prod(shape[1:]))
    return (random.normal(size=shape) * scale).astype(np.float32)


def faulty_weights(first: Any, fault: str, random: Any) -> Any:
    """Return the first layer's weights, changed if the fault demands it."""
    if fault == "BGR in the weights":
        return first[:, ::-1].copy()
    if fault == "other weights":
        return first + random.normal(0, 0.2, first.shape).astype(np.float32)
    if fault == "overflow":
        huge = first.astype(np.float64) * 1e38
        return np.clip(huge, -3e38, 3e38).astype(np.float32)
    return first


def _second_activation(net: _Network, fault: str) -> None:
    activation = "Relu"
    if fault == "sigmoid for ReLU, deep":
        activation = "Sigmoid"
    net.add(activation)
    if fault == "range too narrow, deep":
        net.quantize(0.8 / 127)
    if fault == "int8 as it should be":
        net.quantize(8.8 / 127)


def build(path: Path, fault: str, seed: int) -> None:
    """Write the network with a fault of :data:`FAULTS`."""
    random = np.random.default_rng(seed)
    net = _Network()

    first = random_weights(random, 8, 3, 3, 3)
    second = random_weights(random, 12, 8, 3, 3)
    dense = random_weights(random, CLASSES, 12 * 16)
    first *= 5
    biases = []
    for size in (8, 12, CLASSES):
        biases.append(random.normal(0.2, 0.3, size).astype(np.float32))

    _front(net, fault)
    first = faulty_weights(first, fault, random)
    if fault == "bias missing":
        biases[0] = 0 * biases[0]
    net.add("Conv", first, biases[0], pads=[1, 1, 1, 1])
    if fault == "batch normalisation folded wrongly":
        net.add("Mul", random.uniform(0.5, 1.5, (1, 8, 1, 1)).astype(np.float32))
    _first_activation(net, fault)

    net.add("Conv", second, biases[1], pads=[1, 1, 1, 1], strides=[2, 2])
    _second_activation(net, fault)

    pooling = "MaxPool"
    if fault == "average for maximum":
        pooling = "AveragePool"
    net.add(pooling, kernel_shape=[2, 2], strides=[2, 2])
    if fault == "flattened as NHWC":
        net.add("Transpose", perm=[0, 2, 3, 1])
    net.add("Flatten")
    net.add("Gemm", dense, biases[2], transB=1)
    net.add("Softmax", axis=1)
    net.save(path)


def _front(net: _Network, fault: str) -> None:
    # As if the picture were -1 to 1, which the network turns into 0 to 1.
    if fault == "wants -1 to 1":
        net.add("Add", np.float32(1))
        net.add("Mul", np.float32(0.5))
    if fault == "wants 0 to 255":
        net.add("Mul", np.float32(1 / 255))
    if fault == "wants ImageNet's mean":
        net.add("Mul", STD)
        net.add("Add", MEAN)
    if fault == "mean and deviation of other data":
        net.add("Sub", np.float32(0.1307))
        net.add("Mul", np.float32(1 / 0.3081))
    if fault == "mean and deviation by channel":
        net.add("Mul", np.array([1.3, 0.7, 0.9], np.float32))
        net.add("Add", np.array([-0.2, 0.1, 0.3], np.float32))
    if fault == "BGR":
        net.add("Gather", np.array([2, 1, 0]), axis=3)
    if fault == "height and width swapped":
        net.add("Transpose", perm=[0, 2, 1, 3])
    if fault == "read as NCHW":
        net.add("Reshape", np.array([1, 3, SIZE, SIZE]))
    else:
        net.add("Transpose", perm=[0, 3, 1, 2])


def _first_activation(net: _Network, fault: str) -> None:
    if fault == "ReLU6 for ReLU":
        net.add("Clip", np.float32(0), np.float32(6))
    elif fault == "leaky ReLU for ReLU":
        net.add("LeakyRelu", alpha=0.2)
    elif fault != "ReLU missing":
        net.add("Relu")
    if fault == "range too narrow":
        net.quantize(1.5 / 127)
    if fault == "range too wide":
        net.quantize(400 / 127)
    if fault == "int8 as it should be":
        net.quantize(9 / 127)


def write_model(folder: Path, fault: str, seed: int = 4) -> None:
    """Write a model folder with the correct network, the faulty one, and samples."""
    (folder / "samples").mkdir(parents=True)
    (folder / "model.toml").write_text(MANIFEST)
    (folder / "labels.txt").write_text(
        "\n".join(f"class {number}" for number in range(CLASSES))
    )
    build(folder / "whole.onnx", "none", seed)
    build(folder / "faulty.onnx", fault, seed)
    random = np.random.default_rng(seed + 3)
    for number in range(6):
        coarse = (random.random((4, 4, 3)) * [255, 180, 120]).astype(np.uint8)
        picture = PIL.Image.fromarray(coarse).resize(
            (SIZE, SIZE), PIL.Image.Resampling.BICUBIC
        )
        picture.save(folder / "samples" / f"{number}.png")
