"""Read the intermediate results of an ONNX model.

A copy of the file in memory declares all results as outputs. This needs no package that
writes ONNX: protobuf merges repeated messages ("Last One Wins" and merging,
protobuf.dev), so a graph of further outputs is simply appended to the file.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pocketserve.formats.protobuf import ProtobufReader, Span
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.layer_outputs import LayerOutput, RunLayers
from pocketserve.tensors import Array

from .check import BUDGET, check_model
from .native import CPU, import_package

_CONSTANT = frozenset({"Constant", "ConstantOfShape", "Shape", "Size"})
_OF_INTEGERS = frozenset({"MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM"})


class _LayerNode(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]


def open_onnx_layers(source: ModelSource) -> RunLayers:
    """Open the file on the CPU so that a run returns all intermediate results.

    Raises:
        ModelLoadError: the file is damaged.
    """
    path = source.path.resolve()
    check_model(path)
    data = path.read_bytes()
    nodes, declared = _read_graph(data)
    nodes = _sorted(nodes)
    live = list(_depending(nodes, declared))
    operators = {}
    for name, node in _by_output(live).items():
        operators[name] = node.operator
    dequantized = _dequantized(live, operators)
    content = data + _more_outputs(operators, declared)
    native = _open_unfused(content, path.parent, source.threads)
    floats = _float_outputs(native)
    return _LayerRun(
        native=native,
        order=[name for name in operators if name in floats],
        operators=operators,
        dequantized=dequantized,
        quantized={*dequantized, *_of_integers(nodes)},
    )


def _open_unfused(content: bytes, weights: Path, threads: int) -> Any:
    """Create a session without fused operators, so each has a result."""
    ort = import_package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(weights)
    )
    return ort.InferenceSession(content, options, providers=[CPU])


def _float_outputs(native: Any) -> set[str]:
    """Return the names of the outputs that have real numbers."""
    floats = set()
    for output in native.get_outputs():
        if output.type in ("tensor(float)", "tensor(float16)"):
            floats.add(output.name)
    return floats


@dataclass(frozen=True)
class _LayerRun:
    """Runs a model and returns the results of its layers.

    Attributes:
        order: the results to return, in the order of computation.
        operators: the operator of each result.
        dequantized: each quantised result's dequantised one, which is returned instead.
        quantized: results of quantised operators.
    """

    native: Any
    order: Sequence[str]
    operators: Mapping[str, str]
    dequantized: Mapping[str, str]
    quantized: Set[str]

    def __call__(self, inputs: Mapping[str, Array]) -> list[LayerOutput]:
        arrays = self._run(inputs)
        replacements = set(self.dequantized.values())
        layers = []
        for name in self.order:
            if name in replacements:
                continue
            value = arrays[self.dequantized.get(name, name)]
            layer = LayerOutput(
                name,
                self.operators[name],
                np.asarray(value, np.float32),
                name in self.quantized,
            )
            layers.append(layer)
        return layers

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Return all intermediate results by name."""
        feeds = {}
        for entry in self.native.get_inputs():
            feeds[entry.name] = np.ascontiguousarray(inputs[entry.name])
        values: list[Any] = self.native.run(self.order, feeds)
        return dict(zip(self.order, values, strict=True))


def _read_graph(data: bytes) -> tuple[list[_LayerNode], dict[str, set[str]]]:
    """Read a ModelProto's nodes, and its inputs, outputs and weights."""
    reader = ProtobufReader(data, BUDGET)
    nodes: list[_LayerNode] = []
    inputs: set[str] = set()
    outputs: set[str] = set()
    weights: set[str] = set()
    for graph in reader.messages((0, len(data)), 7):
        for span in reader.messages(graph, 1):
            nodes.append(_read_node(reader, span))
        inputs.update(_names(reader, graph, 11, 1))
        outputs.update(_names(reader, graph, 12, 1))
        weights.update(_names(reader, graph, 5, 8))
    declared = {
        "inputs": inputs,
        "outputs": outputs,
        "weights": weights,
    }
    return nodes, declared


def _read_node(reader: ProtobufReader, span: Span) -> _LayerNode:
    """Read a NodeProto: 1 inputs, 2 outputs, 4 operator."""
    operator = "".join(reader.texts(span, 4))
    inputs = reader.texts(span, 1)
    outputs = reader.texts(span, 2)
    return _LayerNode(operator, inputs, outputs)


def _dequantized(
    nodes: list[_LayerNode], operators: Mapping[str, str]
) -> dict[str, str]:
    """Map each quantised result to the result of its dequantisation."""
    sources = {}
    for node in nodes:
        if node.operator == "QuantizeLinear":
            sources[node.outputs[0]] = node.inputs[0]
    dequantized = {}
    for node in nodes:
        if node.operator != "DequantizeLinear":
            continue
        source = sources.get(node.inputs[0])
        if source is not None and source in operators:
            dequantized[source] = node.outputs[0]
    return dequantized


def _of_integers(nodes: list[_LayerNode]) -> Iterator[str]:
    """Yield the results that are dequantised or computed from quantised tensors."""
    dequantized: set[str] = set()
    for node in nodes:
        if node.operator == "DequantizeLinear":
            dequantized.update(node.outputs)
    for node in nodes:
        is_integer = node.operator in ("DequantizeLinear", *_OF_INTEGERS)
        if is_integer or not dequantized.isdisjoint(node.inputs):
            yield from node.outputs


def _names(
    reader: ProtobufReader, graph: Span, number: int, field: int
) -> Iterator[str]:
    for part in reader.messages(graph, number):
        yield from reader.texts(part, field)


def _by_output(nodes: Iterable[_LayerNode]) -> dict[str, _LayerNode]:
    """Return the node that makes each tensor, by name."""
    made_by: dict[str, _LayerNode] = {}
    for node in nodes:
        for name in node.outputs:
            if name:
                made_by[name] = node
    return made_by


def _sorted(nodes: list[_LayerNode]) -> list[_LayerNode]:
    """Sort nodes topologically; some tools append nodes at the end of the file."""
    made_by = _by_output(nodes)
    order: dict[int, _LayerNode] = {}
    for last in nodes:
        stack = [last]
        while stack:
            node = stack[-1]
            missing = _first_missing(node, made_by, order)
            is_cycle = len(stack) > len(nodes)
            if id(node) in order or missing is None or is_cycle:
                order[id(node)] = stack.pop()
            else:
                stack.append(missing)
    return list(order.values())


def _first_missing(
    node: _LayerNode, made_by: Mapping[str, _LayerNode], order: Container[int]
) -> _LayerNode | None:
    """Return the first node before this one that isn't sorted yet."""
    for name in node.inputs:
        source = made_by.get(name)
        if source is not None and id(source) not in order:
            return source
    return None


def _depending(
    nodes: list[_LayerNode], declared: Mapping[str, set[str]]
) -> Iterator[_LayerNode]:
    """Yield the nodes that depend on the model's inputs, from sorted nodes."""
    live = declared["inputs"] - declared["weights"]
    for node in nodes:
        if node.operator in _CONSTANT or live.isdisjoint(node.inputs):
            continue
        live |= set(node.outputs)
        yield node


def _more_outputs(names: Iterable[str], declared: Mapping[str, set[str]]) -> bytes:
    """Return a ModelProto with further outputs; the framework infers their types."""
    graph = bytearray()
    for name in names:
        if name in declared["outputs"]:
            continue
        encoded = name.encode(errors="surrogateescape")
        value_info = _field(1, encoded)
        graph += _field(12, value_info)
    return _field(7, bytes(graph))


def _field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field."""
    size = len(content)
    head = bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content
