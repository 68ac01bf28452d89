"""Quantise ONNX files of old releases with ONNX Runtime's tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    [
        (8, (1, CLASSES), False),
        (11, (CLASSES,), True),
        (13, (1, 1), True),
    ],
)
def test_files_of_old_releases_are_quantised(
    opset: int, bias: tuple[int, ...], transposed: bool, tmp_path: Path
) -> None:
    source = tmp_path / "old.onnx"
    output = tmp_path / "new.onnx"
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


def write_two_norms(path: Path, random: Any) -> None:
    """Write two layer normalisations with the same scale and shift."""
    values = {
        "matrix": random.normal(size=(8, 8)),
        "scale": np.ones(8),
        "shift": random.normal(size=8),
    }
    tensors = []
    for name, array in values.items():
        tensors.append(numpy_helper.from_array(array.astype(np.float32), name))
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["a"]),
        helper.make_node("MatMul", ["a", "matrix"], ["b"]),
        helper.make_node("LayerNormalization", ["b", "scale", "shift"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph(nodes, "two", [x], [y], tensors)
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def test_layers_may_share_a_vector(tmp_path: Path) -> None:
    """ONNX Runtime merges equal vectors, and then can't load its own result with exact
    sums.
    """
    random = np.random.default_rng(0)
    source = tmp_path / "two.onnx"
    result = tmp_path / "int8.onnx"
    samples = tmp_path / "samples.npz"
    write_two_norms(source, random)
    rows = random.normal(size=(16, 8)).astype(np.float32)
    np.savez(samples, x=rows)
    request = ConversionRequest(
        source,
        "onnx",
        result,
        "onnx",
        inputs=(SourceTensor("x", "FP32", (1, 8)),),
        samples=samples,
        quantize="int8",
    )
    convert(request)
    before = RUNTIME.open(ModelSource(source)).run({"x": rows[:1]})["y"]
    after = RUNTIME.open(ModelSource(result)).run({"x": rows[:1]})["y"]
    assert 0 < np.abs(before - after).max() < 0.1 * np.abs(before).max()
