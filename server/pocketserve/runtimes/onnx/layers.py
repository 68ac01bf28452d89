"""Read the intermediate results of an ONNX model.

A copy of the file in memory declares all results as outputs. This needs no package that
writes ONNX: protobuf merges repeated messages ("Last One Wins" and merging,
protobuf.dev), so a graph of further outputs is simply appended to the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    operators = {name: node.operator for node in live for name in node.outputs if name}
    dequantized = _dequantized(live, operators)
    quantized = {*dequantized, *_of_integers(nodes)}
    ort = import_package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = source.threads
    options.log_severity_level = 4
    # Fused operators would have no results of their own.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(path.parent)
    )
    native = ort.InferenceSession(
        data + _more_outputs(operators, declared), options, providers=[CPU]
    )
    floats = set()
    for output in native.get_outputs():
        if output.type in ("tensor(float)", "tensor(float16)"):
            floats.add(output.name)
    order = [name for name in operators if name in floats]

    def run(inputs: Mapping[str, Array]) -> list[LayerOutput]:
        feeds = {}
        for entry in native.get_inputs():
            feeds[entry.name] = np.ascontiguousarray(inputs[entry.name])
        values: list[Any] = native.run(order, feeds)
        arrays = dict(zip(order, values, strict=True))
        layers = []
        for name in order:
            if name in dequantized.values():
                continue
            array = np.asarray(arrays[dequantized.get(name, name)], np.float32)
            layers.append(LayerOutput(name, operators[name], array, name in quantized))
        return layers

    return run


def _read_graph(data: bytes) -> tuple[list[_LayerNode], dict[str, set[str]]]:
    """Read a ModelProto's graph: nodes, and names of inputs, outputs and weights."""
    reader = ProtobufReader(data, BUDGET)
    nodes: list[_LayerNode] = []
    declared: dict[str, set[str]] = {
        "inputs": set(),
        "outputs": set(),
        "weights": set(),
    }
    for graph in reader.messages((0, len(data)), 7):
        for node in reader.messages(graph, 1):
            operator = "".join(reader.texts(node, 4))
            nodes.append(
                _LayerNode(operator, reader.texts(node, 1), reader.texts(node, 2))
            )
        declared["inputs"].update(_names(reader, graph, 11, 1))
        declared["outputs"].update(_names(reader, graph, 12, 1))
        declared["weights"].update(_names(reader, graph, 5, 8))
    return nodes, declared


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


def _sorted(nodes: list[_LayerNode]) -> list[_LayerNode]:
    """Sort nodes topologically; some tools append nodes at the end of the file."""
    made_of = {name: node for node in nodes for name in node.outputs if name}
    order: dict[int, _LayerNode] = {}
    for last in nodes:
        stack = [last]
        while stack:
            node = stack[-1]
            missing = [
                made_of[name]
                for name in node.inputs
                if name in made_of and id(made_of[name]) not in order
            ]
            if id(node) in order or not missing or len(stack) > len(nodes):
                order[id(node)] = stack.pop()
            else:
                stack.append(missing[0])
    return list(order.values())


def _depending(
    nodes: list[_LayerNode], declared: Mapping[str, set[str]]
) -> Iterator[_LayerNode]:
    """Yield the nodes that depend on the model's inputs, from sorted nodes."""
    live = declared["inputs"] - declared["weights"]
    for node in nodes:
        if node.operator not in _CONSTANT and not live.isdisjoint(node.inputs):
            live = live | set(node.outputs)
            yield node


def _more_outputs(names: Mapping[str, str], declared: Mapping[str, set[str]]) -> bytes:
    """Return a ModelProto with further outputs; the framework infers their types."""
    graph = b""
    for name in names:
        if name not in declared["outputs"]:
            encoded = name.encode(errors="surrogateescape")
            graph += _field(12, _field(1, encoded))
    return _field(7, graph)


def _field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field."""
    size = len(content)
    head = bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content
