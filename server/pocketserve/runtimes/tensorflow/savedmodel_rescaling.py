"""Find the operator at the start of a SavedModel that rescales its pixels.

The picture is followed from the signature's input through calls of functions. Field
numbers are those of TensorFlow's ``.proto`` files, named in the functions.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pocketserve.formats import mapped
from pocketserve.formats.protobuf import ProtobufReader, Span
from pocketserve.runtimes.metadata import ModelMetadata
from pocketserve.runtimes.rescaling import pixels_unchanged, rescales_pixels
from pocketserve.runtimes.tensorflow.savedmodel_graph import node_name

MAX_STEPS = 30
"""The nodes and calls between the input and the rescaling, and those of its constant."""

_BUDGET: Final = 2_000_000
_MAX_CONSTANT_BYTES: Final = 64
_FLOAT: Final = 1
_PICTURE_AXES: Final = 4
_CALLS: Final = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_OPERATORS: Final = {
    "Add": "add",
    "AddV2": "add",
    "BiasAdd": "add",
    "Mul": "mul",
    "RealDiv": "div",
    "Sub": "sub",
}
_KEEP_NUMBERS: Final = frozenset(("Cast", "Identity", "Reshape"))
_NEUTRAL: Final = frozenset(
    ("Cast", "Identity", "ResizeBilinear", "ReverseV2", "StridedSlice", "Transpose")
)


@dataclass(slots=True)
class _SavedNode:
    """A node: its operator, the names of its inputs' nodes, and its message."""

    kind: str
    inputs: list[str]
    span: Span


@dataclass(slots=True)
class _CallScope:
    """The nodes of the main graph or of a function, and its call."""

    operations: dict[str, _SavedNode] = field(default_factory=dict)
    users: dict[str, list[_SavedNode]] = field(
        default_factory=lambda: defaultdict(list)
    )
    arguments: list[str] = field(default_factory=list)
    caller: _CallScope | None = None
    call_inputs: list[str] = field(default_factory=list)


def read_graph_rescaling(path: Path) -> ModelMetadata | None:
    """Return the metadata of a SavedModel that rescales pixels itself, else None."""
    with mapped(path / "saved_model.pb") as data:
        reader = ProtobufReader(data, _BUDGET)
        graphs = list(reader.messages((0, len(data)), 2))
        if len(graphs) == 1 and _StartOfModel(reader, graphs[0]).rescales():
            return pixels_unchanged()
    return None


class _StartOfModel:
    """Follows the only input of a MetaGraphDef: 2 graph_def, 5 signature_def."""

    def __init__(self, reader: ProtobufReader, span: Span) -> None:
        self._reader = reader
        self._span = span

    def rescales(self) -> bool:
        """Follow the picture to the first operator that changes its values."""
        name = self._picture()
        if name is None:
            return False
        scope = _CallScope()
        for span in self._reader.spans(self._span, 2, 1):
            self._add_node(scope, span)
        for _ in range(MAX_STEPS):
            users = [node for node in scope.users[name] if node.kind != "Shape"]
            if len(users) != 1:
                return False
            node = users[0]
            if node.kind in _OPERATORS:
                return self._is_rescaling(scope, node, name)
            if node.kind in _CALLS:
                inner = self._function_scope(scope, node)
                position = node.inputs.index(name)
                if inner is None or position >= len(inner.arguments):
                    return False
                scope, name = inner, inner.arguments[position]
            elif node.kind in _NEUTRAL and node.inputs[0] == name:
                name = self._text(node.span, 1)
            else:
                return False
        return False

    def _picture(self) -> str | None:
        """Return the node of the signature's only input if it takes pictures.

        SignatureDef: 1 inputs (2 value). TensorInfo: 1 name, 2 dtype, 3 tensor_shape (2
        dim).
        """
        reader = self._reader
        inputs = []
        for entry in reader.messages(self._span, 5):
            if self._text(entry, 1) == "serving_default":
                inputs += reader.spans(entry, 2, 1, 2)
        if len(inputs) != 1:
            return None
        is_float = reader.integers(inputs[0], 2) == [_FLOAT]
        if is_float and len(reader.spans(inputs[0], 3, 2)) == _PICTURE_AXES:
            return node_name(self._text(inputs[0], 1))
        return None

    def _add_node(self, scope: _CallScope, span: Span) -> None:
        """Add a NodeDef: 1 name, 2 op, 3 input."""
        names = []
        for text in self._reader.texts(span, 3):
            if not text.startswith("^"):  # these only order the nodes
                names.append(node_name(text))
        operation = _SavedNode(self._text(span, 2), names, span)
        scope.operations[self._text(span, 1)] = operation
        for name in set(names):
            scope.users[name].append(operation)

    def _function_scope(
        self, caller: _CallScope, call: _SavedNode
    ) -> _CallScope | None:
        """Read the function that a node calls.

        AttrValue: 10 func (1 name). GraphDef: 2 library (1 function). FunctionDef: 1
        signature (1 name, 2 input_arg (1 name)), 3 node_def.
        """
        reader = self._reader
        functions = reader.texts(call.span, 5, 2, 10, 1)
        if len(functions) != 1:
            return None
        for span in reader.spans(self._span, 2, 2, 1):
            if reader.texts(span, 1, 1) != functions:
                continue
            scope = _CallScope(caller=caller, call_inputs=call.inputs)
            scope.arguments = reader.texts(span, 1, 2, 1)
            for node in reader.messages(span, 3):
                self._add_node(scope, node)
            return scope
        return None

    def _is_rescaling(self, scope: _CallScope, node: _SavedNode, picture: str) -> bool:
        if len(node.inputs) != 2:
            return False
        first, second = node.inputs
        comes_first = second == picture
        constant = self._numbers(scope, first if comes_first else second)
        return rescales_pixels(_OPERATORS[node.kind], constant, comes_first)

    def _numbers(self, scope: _CallScope, name: str) -> tuple[float, ...]:
        """Return the numbers of a small constant; empty for other tensors."""
        for _ in range(MAX_STEPS):
            if name in scope.arguments:
                position = scope.arguments.index(name)
                if scope.caller is None or position >= len(scope.call_inputs):
                    return ()
                name = scope.call_inputs[position]
                scope = scope.caller
                continue
            node = scope.operations.get(name)
            if node is None:
                return ()
            if node.kind == "Const":
                return self._constant(node)
            if node.kind not in _KEEP_NUMBERS or not node.inputs:
                return ()
            name = node.inputs[0]
        return ()

    def _constant(self, node: _SavedNode) -> tuple[float, ...]:
        """Read a Const's value.

        AttrValue: 8 tensor. TensorProto: 1 dtype, 4 tensor_content, 5 float_val.
        """
        reader = self._reader
        content = bytearray()
        for tensor in reader.spans(node.span, 5, 2, 8):
            if reader.integers(tensor, 1) != [_FLOAT]:
                return ()
            for number, wire_type, start, end in reader.fields(tensor):
                if number in (4, 5) and wire_type != 0:
                    limit = start + _MAX_CONSTANT_BYTES + 1
                    content += reader.data[start : min(end, limit)]
        if len(content) > _MAX_CONSTANT_BYTES or len(content) % 4:
            return ()
        return struct.unpack(f"<{len(content) // 4}f", content)

    def _text(self, span: Span, number: int) -> str:
        texts = self._reader.texts(span, number)
        if texts:
            return texts[-1]
        return ""
