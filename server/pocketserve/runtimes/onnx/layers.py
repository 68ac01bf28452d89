"""Intermediate results of an ONNX file: its nodes' results are declared as outputs in a copy of the file in memory.

No package that writes ONNX is needed: by the encoding's rule for a message in two parts, a graph that holds nothing but
further outputs, appended to the file, adds them to the file's own graph ("Last One Wins" and merging, protobuf.dev).
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


class _Node(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]


def open_onnx_layers(source: ModelSource) -> RunLayers:
    """Open the file with every node's results as outputs, on the CPU.

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
    rounded = _rounded(live, operators)
    integers = {*rounded, *_of_integers(nodes)}
    ort = import_package("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = source.threads
    options.log_severity_level = 4
    # Operators that were fused into one would have no results of their own.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(path.parent)
    )
    native = ort.InferenceSession(
        data + _more_outputs(operators, declared), options, providers=[CPU]
    )
    results = [
        output.name
        for output in native.get_outputs()
        if output.type in ("tensor(float)", "tensor(float16)")
    ]
    order = [name for name in operators if name in results]

    def run(inputs: Mapping[str, Array]) -> list[LayerOutput]:
        feeds = {
            entry.name: np.ascontiguousarray(inputs[entry.name])
            for entry in native.get_inputs()
        }
        values: list[Any] = native.run(order, feeds)
        arrays = {
            name: np.asarray(value, np.float32)
            for name, value in zip(order, values, strict=True)
        }
        return [
            LayerOutput(
                name, operators[name], arrays[rounded.get(name, name)], name in integers
            )
            for name in order
            if name not in rounded.values()
        ]

    return run


def _read_graph(data: bytes) -> tuple[list[_Node], dict[str, set[str]]]:
    """Return the nodes of a ModelProto's graph (7), and the names of its inputs (11) and outputs (12)."""
    reader = ProtobufReader(data, BUDGET)
    nodes: list[_Node] = []
    declared: dict[str, set[str]] = {
        "inputs": set(),
        "outputs": set(),
        "weights": set(),
    }
    for graph in reader.messages((0, len(data)), 7):
        nodes += [
            _Node(
                "".join(reader.texts(node, 4)),
                reader.texts(node, 1),
                reader.texts(node, 2),
            )
            for node in reader.messages(graph, 1)
        ]
        for key, number, field in (
            ("inputs", 11, 1),
            ("outputs", 12, 1),
            ("weights", 5, 8),
        ):
            declared[key].update(_names(reader, graph, number, field))
    return nodes, declared


def _rounded(nodes: list[_Node], operators: Mapping[str, str]) -> dict[str, str]:
    """Return the results that go on as integers, with the names of the real numbers that these stand for."""
    source = {
        node.outputs[0]: node.inputs[0]
        for node in nodes
        if node.operator == "QuantizeLinear"
    }
    pairs = [
        (source[node.inputs[0]], node.outputs[0])
        for node in nodes
        if node.operator == "DequantizeLinear" and node.inputs[0] in source
    ]
    return {name: real for name, real in pairs if name in operators}


def _of_integers(nodes: list[_Node]) -> Iterator[str]:
    """Yield what was made of rounded weights or sums, or is itself rounded."""
    real = {
        name
        for node in nodes
        if node.operator == "DequantizeLinear"
        for name in node.outputs
    }
    for node in nodes:
        if node.operator in ("DequantizeLinear", *_OF_INTEGERS) or not real.isdisjoint(
            node.inputs
        ):
            yield from node.outputs


def _names(
    reader: ProtobufReader, graph: Span, number: int, field: int
) -> Iterator[str]:
    for part in reader.messages(graph, number):
        yield from reader.texts(part, field)


def _sorted(nodes: list[_Node]) -> list[_Node]:
    """Return the nodes in an order in which they can run; tools that insert some put them at the end of the file."""
    made_of = {name: node for node in nodes for name in node.outputs if name}
    order: dict[int, _Node] = {}
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


def _depending(nodes: list[_Node], declared: Mapping[str, set[str]]) -> Iterator[_Node]:
    """Yield the nodes whose results depend on the model's inputs, of nodes in the order in which they run."""
    live = declared["inputs"] - declared["weights"]
    for node in nodes:
        if node.operator not in _CONSTANT and not live.isdisjoint(node.inputs):
            live = live | set(node.outputs)
            yield node


def _more_outputs(names: Mapping[str, str], declared: Mapping[str, set[str]]) -> bytes:
    """Return a ModelProto of a graph whose outputs have these names, without types: the framework infers them."""
    graph = b"".join(
        _field(12, _field(1, name.encode(errors="surrogateescape")))
        for name in names
        if name not in declared["outputs"]
    )
    return _field(7, graph)


def _field(number: int, content: bytes) -> bytes:
    """Return a field with a length."""
    size, head = len(content), bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content
