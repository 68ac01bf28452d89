"""Quantise ONNX files of old releases with ONNX Runtime's tool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.onnx.session import RUNTIME
from pocketserve_lab.convert.converter import ConversionRequest, SourceTensor
from pocketserve_lab.convert.tools.onnx_quantizer import convert

pytestmark = pytest.mark.onnx

CLASSES = 5


def old_network(
    path: Path, opset: int, bias: tuple[int, ...], *, transposed: bool
) -> None:
    """Write a convolution and a Gemm with this bias; IR 3 lists weights as inputs."""
    random = np.random.default_rng(0)
    weights = {
        "filters": random.normal(size=(8, 1, 3, 3)),
        "shifts": random.normal(size=8),
        "matrix": random.normal(
            size=(CLASSES, 8 * 6 * 6) if transposed else (8 * 6 * 6, CLASSES)
        ),
        "bias": random.normal(size=bias),
    }
    tensors = [
        numpy_helper.from_array(values.astype(np.float32), name)
        for name, values in weights.items()
    ]
    nodes = [
        helper.make_node(
            "Conv", ["x", "filters", "shifts"], ["a"], kernel_shape=[3, 3]
        ),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Flatten", ["b"], ["c"]),
        helper.make_node(
            "Gemm", ["c", "matrix", "bias"], ["y"], transB=int(transposed)
        ),
    ]
    float32 = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", float32, [1, 1, 8, 8])]
    inputs += [
        helper.make_tensor_value_info(tensor.name, float32, tensor.dims)
        for tensor in tensors
    ]
    outputs = [helper.make_tensor_value_info("y", float32, [1, CLASSES])]
    graph = helper.make_graph(nodes, "old", inputs, outputs, tensors)
    onnx.save(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3
        ),
        path,
    )


@pytest.mark.parametrize(
    ("opset", "bias", "transposed"),
    [(8, (1, CLASSES), False), (11, (CLASSES,), True), (13, (1, 1), True)],
)
def test_files_of_old_releases_are_quantised(
    opset: int, bias: tuple[int, ...], transposed: bool, tmp_path: Path
) -> None:
    source, output = tmp_path / "old.onnx", tmp_path / "new.onnx"
    old_network(source, opset, bias, transposed=transposed)
    pictures = np.random.default_rng(1).random((16, 1, 8, 8), dtype=np.float32)
    np.savez(tmp_path / "samples.npz", x=pictures)
    inputs = (SourceTensor("x", "FP32", (1, 1, 8, 8)),)
    request = ConversionRequest(
        source,
        "onnx",
        output,
        "onnx",
        inputs=inputs,
        samples=tmp_path / "samples.npz",
        quantize="int8",
    )
    assert convert(request).options == {"format": "QDQ", "per_channel": True}
    before, after = (
        RUNTIME.open(ModelSource(path)).run({"x": pictures[:1]})["y"]
        for path in (source, output)
    )
    assert 0 < np.abs(before - after).max() < 0.02 * np.abs(before).max()
    assert [entry.name for entry in onnx.load(output).graph.input] == ["x"]


def test_layers_may_share_a_vector(tmp_path: Path) -> None:
    """ONNX Runtime merges equal vectors, and then can't load its own result with exact
    sums.
    """
    random = np.random.default_rng(0)
    values = {
        "matrix": random.normal(size=(8, 8)),
        "scale": np.ones(8),
        "shift": random.normal(size=8),
    }
    tensors = [
        numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in values.items()
    ]
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["a"]),
        helper.make_node("MatMul", ["a", "matrix"], ["b"]),
        helper.make_node("LayerNormalization", ["b", "scale", "shift"], ["y"]),
    ]
    (x, y) = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"
    )
    model = helper.make_model(
        helper.make_graph(nodes, "two", [x], [y], tensors),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "two.onnx")
    rows = random.normal(size=(16, 8)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=rows)
    request = ConversionRequest(
        tmp_path / "two.onnx",
        "onnx",
        tmp_path / "int8.onnx",
        "onnx",
        inputs=(SourceTensor("x", "FP32", (1, 8)),),
        samples=tmp_path / "samples.npz",
        quantize="int8",
    )
    convert(request)
    before, after = (
        RUNTIME.open(ModelSource(tmp_path / name)).run({"x": rows[:1]})["y"]
        for name in ("two.onnx", "int8.onnx")
    )
    assert 0 < np.abs(before - after).max() < 0.1 * np.abs(before).max()
