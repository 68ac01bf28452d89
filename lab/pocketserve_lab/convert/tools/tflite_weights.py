"""Writes a TFLite model's weights in half floats or in int8, which needs neither TensorFlow nor a compiler.

Only how weights are stored changes: an operator of its own, DEQUANTIZE, makes float32 of each when the model is
loaded. So the file is a half or a quarter as large, every operator computes as before, and memory and speed stay what
they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
"""Smaller weights stay as they are: the operator that goes with each takes some hundred bytes itself."""

CONVERTER = Converter(
    name="tflite-weights",
    sources=("tflite",),
    kind="tflite",
    module="tflite_weights",
    quantize=("fp16", "dynamic"),
)

_NOT_WEIGHTS = frozenset({tfl.DEQUANTIZE, tfl.CALL, tfl.CUSTOM, tfl.DELEGATE})
"""Operators that may read what they take otherwise than as numbers of its type, and what was dequantised before."""

_VERSIONS = {tfl.FLOAT16: 3, tfl.INT8: 5}
"""Of DEQUANTIZE, which take that type; for int8, with a scale for each channel, and half floats as well."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model at ``request.output`` with its weights in half floats (fp16) or int8 (dynamic).

    Raises:
        ConversionError: the model is damaged, or newer than what is known here.
    """
    datatype = tfl.FLOAT16 if request.quantize == "fp16" else tfl.INT8
    try:
        model = tfl.read_tflite_model(request.source)
        count = shrink_weights(model, datatype)
        with request.output.open("wb") as file:
            write_tree(model, tfl.IDENTIFIER, file)
    except DamagedFileError as error:
        raise ConversionError(
            f"{request.title} cannot be rewritten: {error}; convert the model that it was made from instead"
        ) from error
    return ConversionOutcome(CONVERTER.name, __version__, {"weights": count})


def shrink_weights(model: FlatNode, datatype: int) -> int:
    """Have a model's weights stored in another datatype, and return how many tensors are.

    Args:
        model: the root of a model, which is changed.
        datatype: ``FLOAT16`` or ``INT8``, of TensorType.
    """
    _unshare(model)
    kinds = [tfl.operator_kind(code) for code in model.nodes(1)]
    graphs = [
        _Graph(graph, kinds)
        for graph in {id(graph): graph for graph in model.nodes(2)}.values()
    ]
    buffers = model.nodes(4)
    weights = [weight for graph in graphs for weight in graph.weights(buffers)]
    smaller = [
        (weight, stored)
        for weight in weights
        if (stored := _stored(weight, datatype)) is not None
    ]
    if not smaller:
        return 0
    code = _add_dequantize(model, _VERSIONS[datatype])
    numbers: dict[
        tuple[int, int, bool], int
    ] = {}  # the new buffers, for weights that are used twice
    for weight, stored in smaller:
        key = (weight.buffer, weight.axis, weight.depthwise)
        if key not in numbers:
            numbers[key] = len(buffers)
            buffers.append(_buffer(stored.values))
        weight.graph.store(weight, stored, numbers[key], code)
    _drop_unused(model, {weight.buffer for weight, _ in smaller})
    return len(smaller)


@dataclass(frozen=True)
class _Weight:
    """A constant float32 tensor.

    Attributes:
        index: in its graph's tensors.
        buffer: in the model's buffers.
        axis: that of its channels, of which each gets a scale.
        depthwise: whether each of its channels filters one channel of a picture. Such filters are a few numbers each
            and hardly count in a file, but in a MobileNet to round them costs as much accuracy as all the others.
    """

    graph: _Graph
    index: int
    buffer: int
    values: Array
    axis: int
    depthwise: bool


@dataclass(frozen=True)
class _Stored:
    """A weight as it is written: half floats, or int8 with a scale for each channel, or one for all."""

    values: Array
    scales: Array | None = None


class _Graph:
    """A graph of the model, and who uses its tensors."""

    def __init__(self, node: FlatNode, kinds: list[int]) -> None:
        self._node = node
        self._added: list[FlatNode] = []
        self._tensors, self._operators = node.nodes(0), node.nodes(3)
        self._uses: dict[
            int, list[tuple[int, int]]
        ] = {}  # tensor -> operators' kinds and their inputs' places
        for operator in self._operators:
            kind = kinds[operator.number(0, "I")]
            for place, tensor in enumerate(_integers(operator, 1)):
                self._uses.setdefault(tensor, []).append((kind, place))
        self._open = {*_integers(node, 1), *_integers(node, 2)}

    def weights(self, buffers: list[FlatNode]) -> Iterator[_Weight]:
        """Yield the weights that may be stored otherwise."""
        for index, tensor in enumerate(self._tensors):
            uses = self._uses.get(index, [])
            is_free = (
                uses
                and index not in self._open
                and not any(kind in _NOT_WEIGHTS for kind, _ in uses)
            )
            is_plain = (
                tensor.number(1, "b") == tfl.FLOAT32
                and not tensor.number(5, "B")
                and 6 not in tensor.children
            )
            if not is_free or not is_plain:
                continue
            number = tensor.number(2, "I")
            data, shape = buffers[number].vector(0), _integers(tensor, 0)
            count = math.prod(shape)
            if (
                data is not None
                and count >= MIN_ELEMENTS
                and len(data.data) == 4 * count
            ):
                values = np.frombuffer(data.data, "<f4").reshape(shape)
                depthwise = uses[0] == (tfl.DEPTHWISE_CONV_2D, 1)
                last = depthwise or uses[0] == (tfl.BATCH_MATMUL, 1)
                yield _Weight(
                    self,
                    index,
                    number,
                    values,
                    len(shape) - 1 if last else 0,
                    depthwise,
                )

    def store(self, weight: _Weight, stored: _Stored, buffer: int, code: int) -> None:
        """Add a tensor with the smaller values, and an operator that makes the old tensor of it."""
        old = self._tensors[weight.index]
        new = FlatNode()
        new.set_child(0, _vector(weight.values.shape, "<i4"))
        new.set_number(1, "b", tfl.FLOAT16 if stored.scales is None else tfl.INT8)
        new.set_number(2, "I", buffer)
        new.set_child(3, FlatVector(f"{old.text(3)}/stored".encode()))
        if stored.scales is not None:
            new.set_child(4, _quantization(stored.scales, weight.axis))
        self._tensors.append(new)
        old.remove(2)
        old.remove(4)  # a range that a converter noted for the float32 values
        operator = FlatNode()
        operator.set_number(0, "I", code)
        operator.set_child(1, _vector([len(self._tensors) - 1], "<i4"))
        operator.set_child(2, _vector([weight.index], "<i4"))
        self._operators.insert(len(self._added), operator)
        self._added.append(operator)


def _stored(weight: _Weight, datatype: int) -> _Stored | None:
    """Return a weight in a smaller datatype; None where it stays float32, because its values do not fit."""
    values = weight.values
    if not np.isfinite(values).all():
        return None
    if datatype == tfl.FLOAT16 or weight.depthwise:
        return (
            _Stored(values.astype("<f2"))
            if np.abs(values).max() <= np.finfo(np.float16).max
            else None
        )
    if values.ndim < 2:  # a bias: its error would be added to every answer
        return None
    rest = tuple(axis for axis in range(values.ndim) if axis != weight.axis)
    scales = np.abs(values).max(axis=rest).astype(np.float64) / 127
    scales = np.maximum(scales, np.finfo(np.float32).tiny).astype(np.float32)
    shape = [-1 if axis == weight.axis else 1 for axis in range(values.ndim)]
    return _Stored(
        np.clip(np.rint(values / scales.reshape(shape)), -127, 127).astype(np.int8),
        scales,
    )


def _unshare(model: FlatNode) -> None:
    """Give each tensor and buffer a table of its own: some writers have alike ones share one, which is changed here."""
    tables: set[int] = set()
    graphs = {id(graph): graph for graph in model.nodes(2)}.values()
    for nodes in (*(graph.nodes(0) for graph in graphs), model.nodes(4)):
        for place, node in enumerate(nodes):
            if id(node) in tables:
                nodes[place] = node.copy()
            tables.add(id(node))


def _quantization(scales: Array, axis: int) -> FlatNode:
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
    """Empty those of some buffers that no tensor and no metadata uses any more."""
    tensors = (tensor for graph in model.nodes(2) for tensor in graph.nodes(0))
    used = {tensor.number(2, "I") for tensor in tensors} | {
        entry.number(1, "I") for entry in model.nodes(6)
    }
    for number in numbers - used:
        model.nodes(4)[number].remove(0)


def _buffer(values: Array) -> FlatNode:
    node = FlatNode()
    node.set_child(0, FlatVector(values.tobytes(), 1, 16))
    return node


def _vector(values: Any, datatype: str) -> FlatVector:
    array = np.asarray(values, datatype)
    return FlatVector(array.tobytes(), array.itemsize)


def _integers(node: FlatNode, field: int) -> list[int]:
    vector = node.vector(field)
    return [] if vector is None else np.frombuffer(vector.data, "<i4").tolist()
