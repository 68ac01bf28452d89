"""The layers that int8 leaves in floats."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pocketserve_lab.convert.converter import (
    CALIBRATION_METHODS,
    ConversionError,
    ConversionRequest,
    SourceTensor,
)
from pocketserve_lab.convert.tools import onnx_quantizer
from pocketserve_lab.convert.tools.calibration import sample_inputs
from pocketserve_lab.convert.tools.precision.onnx_static import (
    RUNTIME_METHODS,
    OnnxWriter,
)
from pocketserve_lab.convert.tools.precision.search import Measured, PrecisionSearch
from pocketserve_lab.convert.verify import (
    Agreement,
    check_loss,
    worse_in_other_programs,
)

pytestmark = pytest.mark.onnx

WIDTHS = (64, 96, 64, 128, 48, 32)
"""Of a chain of matrices."""

OUTLIERS = (1, 12, 1, 5, 1)
"""Largest weight of each matrix, relative to the others, which int8 rounds away."""


def write_network(path: Path, random: np.random.Generator) -> None:
    """Write a network whose layers lose different amounts in int8."""
    tensors = []
    nodes = []
    value = "x"
    for number, outlier in enumerate(OUTLIERS):
        rows, columns = WIDTHS[number : number + 2]
        matrix = random.normal(size=(rows, columns)) / np.sqrt(rows)
        matrix[0] *= outlier
        name = f"matrix{number}"
        tensors.append(numpy_helper.from_array(matrix.astype(np.float32), name))
        product = f"product{number}"
        nodes.append(helper.make_node("MatMul", [value, name], [product]))
        value = f"value{number}"
        nodes.append(helper.make_node("Relu", [product], [value]))
    # A last Relu would leave zeros.
    nodes[-1] = helper.make_node("Identity", [product], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTHS[0]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTHS[-1]])
    graph = helper.make_graph(nodes, "chain", [x], [y], tensors)
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def write_chain(folder: Path) -> ConversionRequest:
    """Write the network and samples; return a request to quantise it."""
    random = np.random.default_rng(3)
    source = folder / "chain.onnx"
    write_network(source, random)
    samples = folder / "samples.npz"
    rows = random.normal(size=(40, WIDTHS[0])).astype(np.float32)
    np.savez(samples, x=rows)
    return ConversionRequest(
        source,
        "onnx",
        folder / "result.onnx",
        "onnx",
        inputs=(SourceTensor("x", "FP32", (1, WIDTHS[0])),),
        outputs=(SourceTensor("y", "FP32", (1, WIDTHS[-1])),),
        samples=samples,
        quantize="int8",
    )


def with_options(request: ConversionRequest, **options: object) -> ConversionRequest:
    """Return a request with other options."""
    values = {**vars(request), "options": options}
    return ConversionRequest(**values)


def test_the_search_comes_close_to_the_best_of_all(tmp_path: Path) -> None:
    """Its file is at most 5 % larger than the smallest of all combinations."""
    request = with_options(write_chain(tmp_path), max_loss=0.0)
    writer = OnnxWriter(request, request.source, per_channel=True)
    layers = writer.layers()
    results = {}
    for number in range(len(layers) + 1):
        for floats in combinations(layers, number):
            results[frozenset(floats)] = writer.measured(frozenset(floats))
    assert len(results) == 2 ** len(OUTLIERS)
    losses = sorted(result.loss for result in results.values())
    # The smallest loss, none, needs all layers in floats.
    for max_loss in losses[1:]:
        choice = PrecisionSearch(layers, results.__getitem__, max_loss).best()
        accepted = [one.size for one in results.values() if one.loss <= max_loss]
        assert choice is not None
        assert choice.measured.loss <= max_loss
        assert choice.measured.size <= 1.05 * min(accepted)


def test_a_stated_loss_holds(tmp_path: Path) -> None:
    request = with_options(write_chain(tmp_path), max_loss=0.16)
    outcome = onnx_quantizer.convert(request)
    floats = outcome.options["floats"]
    assert 0 < len(floats) < len(OUTLIERS)
    assert outcome.notes[0].startswith(f"{len(floats)} of {len(OUTLIERS)} layers stay")
    with np.load(outcome.answers) as answers:
        result = answers["y"]
    plain = onnx_quantizer.PlainSession(request.source, {"x": "x"})
    with np.load(request.samples or "") as samples:
        rows = samples["x"]
    expected = np.stack([plain.answer({"x": row[None]})["0"] for row in rows])
    error = np.linalg.norm(expected - result) / np.linalg.norm(expected)
    assert 0 < error < 0.2


def test_only_floats_may_be_good_enough(tmp_path: Path) -> None:
    request = with_options(write_chain(tmp_path), max_loss=1e-9)
    with pytest.raises(ConversionError, match="loses more than") as caught:
        onnx_quantizer.convert(request)
    assert caught.value.nearest


def test_excluded_layers_keep_their_weights(tmp_path: Path) -> None:
    request = with_options(write_chain(tmp_path), exclude=["MatMul_2"])
    outcome = onnx_quantizer.convert(request)
    assert outcome.options["floats"] == ["MatMul_2"]
    weights = {}
    for weight in onnx.load(request.output).graph.initializer:
        weights[weight.name] = weight.data_type
    assert weights["matrix1"] == TensorProto.FLOAT
    assert "matrix0" not in weights


def test_an_unknown_layer_is_named(tmp_path: Path) -> None:
    request = with_options(write_chain(tmp_path), exclude=["MatMul_3"])
    with pytest.raises(ConversionError, match=r"no layer 'MatMul_3'.*did you mean"):
        onnx_quantizer.convert(request)


@pytest.mark.parametrize("method", CALIBRATION_METHODS)
def test_methods_of_calibration(method: str, tmp_path: Path) -> None:
    request = with_options(write_chain(tmp_path), calibration=method)
    assert set(RUNTIME_METHODS) == set(CALIBRATION_METHODS)
    onnx_quantizer.convert(request)
    assert request.output.stat().st_size < request.source.stat().st_size


def test_layers_without_a_loss_are_quantised() -> None:
    """Each excluded layer is tried again with the others' room."""
    sizes = {"a": 100, "b": 1000, "c": 300}
    losses = {"a": 0.3, "b": 0.0, "c": 0.1}

    def measure(floats: frozenset[str]) -> Measured:
        size = 100 + sum(4 * sizes[name] for name in floats)
        quantized = losses.keys() - floats
        size += sum(sizes[name] for name in quantized)
        loss = sum(losses[name] for name in quantized)
        return Measured(size, loss, loss)

    choice = PrecisionSearch(list(sizes), measure, 0.15).best()
    assert choice is not None
    assert choice.floats == {"a"}


def test_a_loss_beyond_the_limit_is_refused() -> None:
    with pytest.raises(
        ConversionError, match=r"^2\.00% of 50 samples .* allows 0\.50%$"
    ):
        check_loss(Agreement(0.1, 0.1, 0.98, 50), 0.005)
    with pytest.raises(ConversionError, match=r"^its outputs differ by 10\.00%"):
        check_loss(Agreement(0.1, 0.1, None, 50), 0.005)
    check_loss(Agreement(0.1, 0.1, 1.0, 50), 0.0)


def test_the_worse_answer_of_other_programs_is_reported() -> None:
    here = Agreement(0.008, 0.1, None, 20)
    plain = Agreement(0.13, 0.9, None, 20)
    agreement, notes = worse_in_other_programs(here, plain)
    assert agreement == plain
    assert (
        "0.008 of their size in Pocketserve, and by 0.13 in other programs" in notes[0]
    )
    assert worse_in_other_programs(here, here) == (here, [])


def test_samples_of_a_free_first_size_are_stacked(tmp_path: Path) -> None:
    """The nodes of a graph are no rows."""
    path = tmp_path / "samples.npz"
    np.savez(path, nodes=np.zeros((3, 20, 8)), row=np.zeros((3, 5)))
    tensors = (
        SourceTensor("nodes", "FP32", (-1, 8)),
        SourceTensor("row", "FP32", (-1, 5)),
    )
    request = ConversionRequest(
        path, "onnx", path, inputs=tensors, samples=path, quantize="int8"
    )
    shapes = [one["nodes"].shape + one["row"].shape for one in sample_inputs(request)]
    assert shapes == [(20, 8, 1, 5)] * 3
