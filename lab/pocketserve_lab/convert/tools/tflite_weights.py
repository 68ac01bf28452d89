"""Store a TFLite model's weights in half floats or int8, without TensorFlow.

Only the storage of weights changes: an operator DEQUANTIZE converts each to float32
when the model is loaded. So the file is a half or a quarter as large; every operator
computes as before, with the same memory and speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pocketserve.formats import DamagedFileError
from pocketserve.formats.flatbuffer_tree import FlatNode, FlatVector, write_tree
from pocketserve.tensors import Array
from pocketserve_lab.convert import tflite_model as tfl
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_wire.version import __version__

MIN_ELEMENTS = 256
"""Smaller weights are not changed: the added operator takes bytes, too."""

CONVERTER = Converter(
    name="tflite-weights",
    sources=("tflite",),
    kind="tflite",
    module="tflite_weights",
    quantize=("fp16", "dynamic"),
)

_NOT_WEIGHTS = frozenset({tfl.DEQUANTIZE, tfl.CALL, tfl.CUSTOM, tfl.DELEGATE})
"""Operators that may read their input other than as numbers, and DEQUANTIZE itself."""

_VERSIONS = {tfl.FLOAT16: 3, tfl.INT8: 5}
"""Version of DEQUANTIZE that takes the type.

For int8, it also has a scale for each channel, and takes half floats, too."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model to ``request.output`` with weights in float16 or int8.

    The mode fp16 makes half floats, dynamic makes int8.

    Raises:
        ConversionError: the model is damaged, or newer than this code.
    """
    datatype = tfl.FLOAT16 if request.quantize == "fp16" else tfl.INT8
    try:
        model = tfl.read_tflite_model(request.source)
        count = shrink_weights(model, datatype)
        with request.output.open("wb") as file:
            write_tree(model, tfl.IDENTIFIER, file)
    except DamagedFileError as error:
        raise ConversionError(
            f"{request.title} cannot be rewritten: {error}; "
            "convert the model that it was made from instead"
        ) from error
    return ConversionOutcome(CONVERTER.name, __version__, {"weights": count})


def shrink_weights(model: FlatNode, datatype: int) -> int:
    """Store weights in another datatype; return the number of tensors.

    Args:
        model: the root of a model, which is changed.
        datatype: ``FLOAT16`` or ``INT8``, of TensorType.
    """
    _unshare(model)
    buffers = model.nodes(4)
    smaller: list[tuple[_Weight, _Stored]] = []
    for graph in _graphs(model):
        for weight in graph.weights(buffers):
            stored = _stored(weight, datatype)
            if stored is not None:
                smaller.append((weight, stored))
    if not smaller:
        return 0
    code = _add_dequantize(model, _VERSIONS[datatype])
    # The new buffers, for weights that are used twice.
    numbers: dict[tuple[int, int, bool], int] = {}
    for weight, stored in smaller:
        key = (weight.buffer, weight.axis, weight.depthwise)
        if key not in numbers:
            numbers[key] = len(buffers)
            buffers.append(_buffer(stored.values))
        weight.graph.store(weight, stored, numbers[key], code)
    _drop_unused(model, {weight.buffer for weight, _ in smaller})
    return len(smaller)


def _graphs(model: FlatNode) -> list[_Graph]:
    """Return the graphs of a model; some writers share equal ones."""
    kinds = [tfl.operator_kind(code) for code in model.nodes(1)]
    graphs = {}
    for node in model.nodes(2):
        if id(node) not in graphs:
            graphs[id(node)] = _Graph(node, kinds)
    return list(graphs.values())


@dataclass(frozen=True)
class _Weight:
    """A constant float32 tensor.

    Attributes:
        index: in its graph's tensors.
        buffer: in the model's buffers.
        axis: that of its channels; each of them gets a scale.
        depthwise: whether each of its channels filters one channel of a picture. Such
            filters are a few numbers each and hardly count in a file, but in a
            MobileNet rounding them costs as much accuracy as rounding all the others.
    """

    graph: _Graph
    index: int
    buffer: int
    values: Array
    axis: int
    depthwise: bool


@dataclass(frozen=True)
class _Stored:
    """A weight in half floats, or in int8 with scales."""

    values: Array
    scales: Array | None = None


class _Use(NamedTuple):
    """An operator that reads a tensor as an input."""

    kind: int
    position: int


class _Graph:
    """A graph of the model, and the uses of its tensors."""

    def __init__(self, node: FlatNode, kinds: list[int]) -> None:
        self._node = node
        self._added: list[FlatNode] = []
        self._tensors = node.nodes(0)
        self._operators = node.nodes(3)
        self._uses: dict[int, list[_Use]] = {}
        for operator in self._operators:
            kind = kinds[operator.number(0, "I")]
            for position, tensor in enumerate(_integers(operator, 1)):
                self._uses.setdefault(tensor, []).append(_Use(kind, position))
        self._open = {*_integers(node, 1), *_integers(node, 2)}

    def weights(self, buffers: list[FlatNode]) -> Iterator[_Weight]:
        """Yield the weights whose storage can change."""
        for index, tensor in enumerate(self._tensors):
            if not self._is_free(index) or not _is_plain(tensor):
                continue
            number = tensor.number(2, "I")
            data = buffers[number].vector(0)
            shape = _integers(tensor, 0)
            count = math.prod(shape)
            if data is None or len(data.data) != 4 * count:
                continue
            if count < MIN_ELEMENTS:
                continue
            values = np.frombuffer(data.data, "<f4").reshape(shape)
            first_use = self._uses[index][0]
            depthwise = first_use == (tfl.DEPTHWISE_CONV_2D, 1)
            axis = 0
            if depthwise or first_use == (tfl.BATCH_MATMUL, 1):
                axis = len(shape) - 1
            yield _Weight(
                graph=self,
                index=index,
                buffer=number,
                values=values,
                axis=axis,
                depthwise=depthwise,
            )

    def _is_free(self, index: int) -> bool:
        """Return whether only operators that take numbers use a tensor."""
        uses = self._uses.get(index, [])
        if not uses or index in self._open:
            return False
        return not any(use.kind in _NOT_WEIGHTS for use in uses)

    def store(self, weight: _Weight, stored: _Stored, buffer: int, code: int) -> None:
        """Add a smaller tensor, and an operator that converts it."""
        old = self._tensors[weight.index]
        number = len(self._tensors)
        self._tensors.append(_stored_tensor(weight, stored, buffer, old.text(3)))
        old.remove(2)
        # A range that a converter noted for the float32 values.
        old.remove(4)
        operator = FlatNode()
        operator.set_number(0, "I", code)
        operator.set_child(1, _vector([number], "<i4"))
        operator.set_child(2, _vector([weight.index], "<i4"))
        self._operators.insert(len(self._added), operator)
        self._added.append(operator)


def _stored_tensor(
    weight: _Weight, stored: _Stored, buffer: int, name: str
) -> FlatNode:
    """Return the Tensor of a weight's smaller values."""
    datatype = tfl.INT8
    if stored.scales is None:
        datatype = tfl.FLOAT16
    tensor = FlatNode()
    tensor.set_child(0, _vector(weight.values.shape, "<i4"))
    tensor.set_number(1, "b", datatype)
    tensor.set_number(2, "I", buffer)
    tensor.set_child(3, FlatVector(f"{name}/stored".encode()))
    if stored.scales is not None:
        tensor.set_child(4, _quantization(stored.scales, weight.axis))
    return tensor


def _is_plain(tensor: FlatNode) -> bool:
    """Return whether a tensor is float32, no variable, and not sparse."""
    is_float = tensor.number(1, "b") == tfl.FLOAT32
    is_variable = bool(tensor.number(5, "B"))
    return is_float and not is_variable and 6 not in tensor.children


def _stored(weight: _Weight, datatype: int) -> _Stored | None:
    """Return a weight in a smaller datatype.

    None if it stays float32.
    """
    values = weight.values
    if not np.isfinite(values).all():
        return None
    if datatype == tfl.FLOAT16 or weight.depthwise:
        if np.abs(values).max() > np.finfo(np.float16).max:
            return None
        return _Stored(values.astype("<f2"))
    # A bias: its error would be added to every answer.
    if values.ndim < 2:
        return None
    return _quantized(values, weight.axis)


def _quantized(values: Array, axis: int) -> _Stored:
    """Return int8 values with a scale for each position on an axis."""
    axes = range(values.ndim)
    other_axes = tuple(other for other in axes if other != axis)
    largest = np.abs(values).max(axis=other_axes, keepdims=True)
    tiny = np.finfo(np.float32).tiny
    scales = np.maximum(largest.astype(np.float64) / 127, tiny).astype(np.float32)
    rounded = np.rint(values / scales)
    numbers = np.clip(rounded, -127, 127).astype(np.int8)
    return _Stored(numbers, scales.reshape(-1))


def _unshare(model: FlatNode) -> None:
    """Give each tensor and buffer a table of its own."""
    graphs = {id(graph): graph for graph in model.nodes(2)}
    lists = [graph.nodes(0) for graph in graphs.values()]
    lists.append(model.nodes(4))
    tables: set[int] = set()
    for nodes in lists:
        for position, node in enumerate(nodes):
            if id(node) in tables:
                nodes[position] = node.copy()
            tables.add(id(node))


def _quantization(scales: Array, axis: int) -> FlatNode:
    """Return a QuantizationParameters table with zero points of 0."""
    node = FlatNode()
    node.set_child(2, _vector(scales, "<f4"))
    node.set_child(3, FlatVector(bytes(8 * scales.size), 8))
    node.set_number(6, "i", axis)
    return node


def _add_dequantize(model: FlatNode, version: int) -> int:
    """Add the operator's code to the model, and return its number."""
    code = FlatNode()
    code.set_number(0, "b", tfl.DEQUANTIZE)
    code.set_number(2, "i", version)
    code.set_number(3, "i", tfl.DEQUANTIZE)
    model.nodes(1).append(code)
    return len(model.nodes(1)) - 1


def _drop_unused(model: FlatNode, numbers: set[int]) -> None:
    """Empty buffers without users."""
    used = {entry.number(1, "I") for entry in model.nodes(6)}
    for graph in model.nodes(2):
        for tensor in graph.nodes(0):
            used.add(tensor.number(2, "I"))
    for number in numbers - used:
        model.nodes(4)[number].remove(0)


def _buffer(values: Array) -> FlatNode:
    """Return a Buffer table; its data are aligned to 16 bytes."""
    node = FlatNode()
    node.set_child(0, FlatVector(values.tobytes(), 1, 16))
    return node


def _vector(values: Any, datatype: str) -> FlatVector:
    """Return numbers as a vector of a NumPy datatype."""
    array = np.asarray(values, datatype)
    return FlatVector(array.tobytes(), array.itemsize)


def _integers(node: FlatNode, field: int) -> list[int]:
    """Return the int32 numbers of a field; none if it is missing."""
    vector = node.vector(field)
    return [] if vector is None else np.frombuffer(vector.data, "<i4").tolist()
