"""Find the operator at the start of an ONNX graph that rescales its pixels.

Field numbers: GraphProto 1 node, 5 initializer, 11 input; NodeProto 1 input, 2 output, 4
op_type, 5 attribute; AttributeProto 1 name, 2 f, 5 t, 7 floats; TensorProto 2 data_type,
4 float_data, 8 name, 9 raw_data; ValueInfoProto 1 name, 2 type (1 tensor_type (1
elem_type, 2 shape (1 dim))).
"""

from __future__ import annotations

import struct
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from pocketserve.formats import mapped
from pocketserve.formats.protobuf import ProtobufReader, Span
from pocketserve.runtimes.rescaling import rescales_pixels, takes_pixels

MAX_NODES = 500
"""The nodes to look at; those that use the input are among the first."""

MAX_STEPS = 8
"""The nodes between the input and the rescaling, and those of its constant."""

_BUDGET: Final = 1_000_000
_MAX_CONSTANT_BYTES: Final = 64
_FLOAT: Final = 1
_PICTURE_AXES: Final = 4
_ITEM_CODES: Final = {_FLOAT: "f", 6: "i", 7: "q", 10: "e", 11: "d"}
_OPERATORS: Final = {"Add": "add", "Div": "div", "Mul": "mul", "Sub": "sub"}
_NEUTRAL: Final = frozenset(
    ("Cast", "Gather", "Identity", "Pad", "Resize", "Slice", "Transpose")
)
_SUBGRAPHS: Final = frozenset(("If", "Loop", "Scan"))
"""Their bodies may use the picture without naming it as an input."""

_RESHAPES: Final = frozenset(("Cast", "Identity", "Reshape", "Unsqueeze"))


class _NodeInputs(NamedTuple):
    kind: str
    inputs: list[str]
    span: Span


def graph_rescales_pixels(path: Path) -> bool:
    """Return whether the graph rescales its only input from 0..255 itself."""
    with mapped(path) as data:
        reader = ProtobufReader(data, _BUDGET)
        graphs = list(reader.messages((0, len(data)), 7))
        if len(graphs) != 1:
            return False
        return _StartOfGraph(reader, graphs[0]).rescales()


class _StartOfGraph:
    """The first nodes of a graph, by their inputs and outputs."""

    def __init__(self, reader: ProtobufReader, graph: Span) -> None:
        self._reader = reader
        self._graph = graph
        self._constants: dict[str, Span] = {}
        self._producers: dict[str, _NodeInputs] = {}
        self._users: dict[str, list[_NodeInputs]] = {}
        self._has_subgraphs = False
        for span in reader.messages(graph, 5):
            self._constants[self._name(span, 8)] = span

    def rescales(self) -> bool:
        """Follow the picture to the first operator that changes its values."""
        name = self._picture()
        if name is None:
            return False
        self._read_nodes()
        if self._has_subgraphs:
            return False
        for _ in range(MAX_STEPS):
            node = self._only_user(name)
            if node is None:
                return False
            if node.kind in _OPERATORS:
                return self._is_rescaling(node, name)
            if node.kind == "BatchNormalization":
                return self._is_normalization(node, name)
            outputs = self._reader.texts(node.span, 2)
            is_neutral = node.kind in _NEUTRAL and node.inputs[0] == name
            if not is_neutral or len(outputs) != 1:
                return False
            name = outputs[0]
        return False

    def _picture(self) -> str | None:
        """Return the name of the only input if it may be a picture of floats."""
        reader = self._reader
        inputs = []
        for span in reader.messages(self._graph, 11):
            name = self._name(span, 1)
            if name not in self._constants:  # old files list these as inputs, too
                inputs.append((name, span))
        if len(inputs) != 1:
            return None
        name, span = inputs[0]
        axes = reader.spans(span, 2, 1, 2, 1)
        for tensor_type in reader.spans(span, 2, 1):
            is_float = reader.integers(tensor_type, 1) == [_FLOAT]
            if is_float and len(axes) == _PICTURE_AXES:
                return name
        return None

    def _read_nodes(self) -> None:
        reader = self._reader
        for span in islice(reader.messages(self._graph, 1), MAX_NODES):
            kind = "".join(reader.texts(span, 4)[-1:])
            node = _NodeInputs(kind, reader.texts(span, 1), span)
            self._has_subgraphs |= kind in _SUBGRAPHS
            for name in reader.texts(span, 2):
                self._producers[name] = node
            for name in set(node.inputs):
                self._users.setdefault(name, []).append(node)

    def _only_user(self, name: str) -> _NodeInputs | None:
        """Return the node that uses a tensor's values, or None if several do."""
        users = [node for node in self._users.get(name, ()) if node.kind != "Shape"]
        if len(users) == 1:
            return users[0]
        return None

    def _is_rescaling(self, node: _NodeInputs, picture: str) -> bool:
        if len(node.inputs) != 2:
            return False
        first, second = node.inputs
        comes_first = second == picture
        constant = self._numbers(first if comes_first else second)
        return rescales_pixels(_OPERATORS[node.kind], constant, comes_first)

    def _is_normalization(self, node: _NodeInputs, picture: str) -> bool:
        """Return whether a normalization's mean and variance are those of pixels."""
        if len(node.inputs) != 5 or node.inputs[0] != picture:
            return False
        mean = self._numbers(node.inputs[3])
        variance = self._numbers(node.inputs[4])
        if not mean or not variance:
            return False
        deviations = [abs(value) ** 0.5 for value in variance]
        return takes_pixels(mean, deviations)

    def _numbers(self, name: str) -> tuple[float, ...]:
        """Return the numbers of a small constant; empty for other tensors."""
        for _ in range(MAX_STEPS):
            if name in self._constants:
                return self._elements(self._constants[name])
            node = self._producers.get(name)
            if node is None:
                return ()
            if node.kind == "Constant":
                return self._constant_value(node)
            if node.kind not in _RESHAPES or not node.inputs:
                return ()
            name = node.inputs[0]
        return ()

    def _constant_value(self, node: _NodeInputs) -> tuple[float, ...]:
        for attribute in self._reader.messages(node.span, 5):
            kind = self._name(attribute, 1)
            if kind in ("value_float", "value_floats"):
                return _unpacked("f", self._bytes(attribute, (2, 7)))
            if kind == "value":
                for tensor in self._reader.messages(attribute, 5):
                    return self._elements(tensor)
        return ()

    def _elements(self, tensor: Span) -> tuple[float, ...]:
        types = self._reader.integers(tensor, 2)
        if len(types) != 1 or types[0] not in _ITEM_CODES:
            return ()
        fields: tuple[int, ...] = (9,)
        if types[0] == _FLOAT:
            fields = (4, 9)
        return _unpacked(_ITEM_CODES[types[0]], self._bytes(tensor, fields))

    def _bytes(self, span: Span, numbers: tuple[int, ...]) -> bytes:
        """Return the content of fields, cut soon after the limit of a constant."""
        content = bytearray()
        for number, wire_type, start, end in self._reader.fields(span):
            if number in numbers and wire_type != 0:
                limit = start + _MAX_CONSTANT_BYTES + 1
                content += self._reader.data[start : min(end, limit)]
        return bytes(content)

    def _name(self, span: Span, field: int) -> str:
        """Return a name; stop reading at its field."""
        for number, part in self._reader.parts(span):
            if number == field:
                return self._reader.text(part)
        return ""


def _unpacked(code: str, content: bytes) -> tuple[float, ...]:
    """Return a constant's numbers; empty if it is too large or damaged."""
    size = struct.calcsize(f"<{code}")
    if len(content) > _MAX_CONSTANT_BYTES or len(content) % size:
        return ()
    return struct.unpack(f"<{len(content) // size}{code}", content)
