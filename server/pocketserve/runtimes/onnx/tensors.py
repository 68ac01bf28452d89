"""Describe an ONNX model's inputs and outputs; convert outputs.

* A map or sequence of maps ``NAME`` (the probabilities of scikit-learn's classifiers)
  becomes ``NAME.keys``, INT64 or BYTES of shape [classes], and ``NAME.values``, FP32 or
  FP64 of shape [classes] or [rows, classes]. Keys are sorted; a row without a key has
  the value NaN.
* A sequence of tensors ``NAME`` becomes ``NAME`` and ``NAME.shapes``. ``NAME`` has the
  elements stacked to shape [count, ...] if their shapes agree, else all values in one
  dimension. ``NAME.shapes`` is INT64 of shape [count, rank] with each element's shape,
  padded with -1 if ranks differ.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.probe import Probe
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES

from .check import GraphFacts

_DATATYPES = {
    name.lower(): name for name in DATATYPES if name.startswith(("INT", "UINT", "BOOL"))
}
_DATATYPES |= {
    "float16": "FP16",
    "bfloat16": "BF16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}
"""ONNX Runtime's element types, except small floats that the protocol lacks."""


class TensorOutput(NamedTuple):
    """An output that is a tensor."""

    specs: tuple[TensorSpec, ...]
    unsure: bool  # whether the file lacks its shape

    def arrays(self, value: Any) -> dict[str, Array]:
        """Convert a run's value to arrays by name; text becomes UTF-8 ``bytes``."""
        (spec,) = self.specs
        return {spec.name: _encoded(np.asarray(value), spec)}

    def learned(self, probe: Probe) -> TensorOutput:
        """Return the output with a shape from runs on zeros if it was unknown."""
        if not self.unsure:
            return self
        (spec,) = self.specs
        return self._replace(specs=(probe.learned(spec),))


class SequenceOutput(NamedTuple):
    """An output that is a sequence of tensors."""

    specs: tuple[TensorSpec, TensorSpec]
    unsure: bool = True

    def arrays(self, value: Any) -> dict[str, Array]:
        """Convert a run's list of arrays to ``NAME`` and ``NAME.shapes``."""
        elements, shapes = self.specs
        items = [np.asarray(item) for item in value]
        joined = self._joined(items)
        return {
            elements.name: _encoded(joined, elements),
            shapes.name: self._shapes(items),
        }

    def _joined(self, items: Sequence[Array]) -> Array:
        """Stack arrays of one shape; concatenate the values of others."""
        elements = self.specs[0]
        if not items:
            sizes = [max(size, 0) for size in elements.shape[1:]]
            kind = DATATYPES[elements.datatype].typestr
            return np.empty((0, *sizes), kind)
        shapes = {item.shape for item in items}
        if len(shapes) == 1:
            return np.stack(items)
        flat = [item.reshape(-1) for item in items]
        return np.concatenate(flat)

    def _shapes(self, items: Sequence[Array]) -> Array:
        """Return a row with each array's shape, padded with -1."""
        shapes = self.specs[1]
        least = max(shapes.shape[-1], 0)
        ranks = [item.ndim for item in items]
        rank = max(ranks, default=least)
        rows = np.full((len(items), rank), -1, np.int64)
        for row, item in zip(rows, items, strict=True):
            row[: item.ndim] = item.shape
        return rows

    def learned(self, probe: Probe) -> SequenceOutput:
        """Return the output with the shapes from runs on zeros."""
        elements = probe.learned(self.specs[0])
        shapes = probe.learned(self.specs[1])
        # The number of elements may depend on the values, so it stays free.
        element_sizes = (-1, *elements.shape[1:])
        shape_sizes = (-1, *shapes.shape[1:])
        specs = (
            elements._replace(shape=element_sizes),
            shapes._replace(shape=shape_sizes),
        )
        return self._replace(specs=specs)


class MapOutput(NamedTuple):
    """An output that is a map, or a sequence of maps with a row each."""

    specs: tuple[TensorSpec, TensorSpec]
    # from runs on zeros, for an empty batch
    keys: tuple[Any, ...] = ()
    unsure: bool = True

    def arrays(self, value: Any) -> dict[str, Array]:
        """Convert a run's map or maps to ``NAME.keys`` and ``NAME.values``."""
        keys, values = self.specs
        is_single = isinstance(value, Mapping)
        rows = value
        if is_single:
            rows = [value]
        unique = dict.fromkeys(itertools.chain.from_iterable(rows))
        names = list(unique or self.keys)
        table = _table_of(rows, names, values.datatype)
        if is_single:
            table = table[0]
        return {keys.name: _key_array(names, keys), values.name: table}

    def learned(self, probe: Probe) -> MapOutput:
        """Return the output with the shapes and keys from runs on zeros."""
        keys = probe.learned(self.specs[0])
        values = probe.learned(self.specs[1])
        names = probe.results[0][keys.name].tolist()
        return self._replace(specs=(keys, values), keys=tuple(names))


def _table_of(
    rows: Sequence[Mapping[Any, Any]], names: Sequence[Any], datatype: str
) -> Array:
    """Return the maps' values [rows, names]; NaN for a missing name."""
    cells = []
    for row in rows:
        values = [row.get(name, math.nan) for name in names]
        cells.append(values)
    kind = DATATYPES[datatype].typestr
    table = np.array(cells, kind)
    return table.reshape(len(rows), len(names))


def _key_array(names: Sequence[Any], spec: TensorSpec) -> Array:
    labels = object_array(names)
    if spec.datatype == "INT64":
        return labels.astype(np.int64)
    return _encoded(labels, spec)


Output = TensorOutput | SequenceOutput | MapOutput

_TENSOR = re.compile(r"tensor\((\w+)\)")
_SEQUENCE = re.compile(r"seq\(tensor\((\w+)\)\)")
_MAPS = re.compile(r"(seq\()?map\((int64|string),tensor\((float|double)\)\)\)?")


def input_spec(arg: Any, facts: GraphFacts) -> TensorSpec:
    """Return the spec of an input (a ``NodeArg``).

    The spec is ``open`` if the file lacks the shape.
    """
    kind = _TENSOR.fullmatch(arg.type)
    if kind is None:
        raise ModelLoadError(
            f"input {arg.name!r} is of type {arg.type}, and only tensors can be sent; "
            "export the model with tensors as inputs"
        )
    spec, unranked = _tensor_spec(arg, kind[1], facts)
    batch = ""
    if arg.shape and isinstance(arg.shape[0], str):
        batch = arg.shape[0]
    return spec._replace(open=unranked, batch=batch)


def output_of(arg: Any, facts: GraphFacts) -> Output:
    """Return the conversion of an output (a ``NodeArg``) to tensors."""
    kind = _TENSOR.fullmatch(arg.type)
    if kind:
        spec, unranked = _tensor_spec(arg, kind[1], facts)
        return TensorOutput((spec,), unranked)
    kind = _SEQUENCE.fullmatch(arg.type)
    if kind and kind[1] != "bfloat16":
        return _sequence_output(arg, kind[1])
    kind = _MAPS.fullmatch(arg.type)
    if kind:
        return _map_output(arg, kind)
    raise ModelLoadError(
        f"output {arg.name!r} is of type {arg.type}, which cannot be served; export the "
        "model with tensors as outputs"
    )


def _sequence_output(arg: Any, element: str) -> SequenceOutput:
    """Describe a sequence of arrays."""
    datatype = _datatype(arg, element)
    elements = TensorSpec(arg.name, datatype, (-1,))
    shapes = TensorSpec(f"{arg.name}.shapes", "INT64", (-1, -1))
    return SequenceOutput((elements, shapes))


def _map_output(arg: Any, kind: re.Match[str]) -> MapOutput:
    """Describe a map, or a sequence of maps."""
    is_sequence, key_type, value_type = kind.groups()
    key_datatype = _datatype(arg, key_type)
    value_datatype = _datatype(arg, value_type)
    shape: tuple[int, ...] = (-1,)
    if is_sequence:
        shape = (-1, -1)
    keys = TensorSpec(f"{arg.name}.keys", key_datatype, (-1,))
    values = TensorSpec(f"{arg.name}.values", value_datatype, shape)
    return MapOutput((keys, values))


def _tensor_spec(arg: Any, element: str, facts: GraphFacts) -> tuple[TensorSpec, bool]:
    """Return a tensor's spec, and whether the file lacks its shape."""
    datatype = _datatype(arg, element)
    if arg.name in facts.unranked and not arg.shape:
        return TensorSpec(arg.name, datatype, (-1,)), True
    shape = []
    for size in arg.shape:
        # Names and None are free dimensions.
        if isinstance(size, int) and size >= 0:
            shape.append(size)
        else:
            shape.append(-1)
    return TensorSpec(arg.name, datatype, tuple(shape)), False


def _datatype(arg: Any, element: str) -> str:
    if element not in _DATATYPES:
        raise ModelLoadError(
            f"tensor {arg.name!r} is of type {element}, which cannot be served; convert "
            "the model with another type"
        )
    return _DATATYPES[element]


def _encoded(array: Array, spec: TensorSpec) -> Array:
    if spec.datatype != "BYTES":
        return array
    items = []
    for item in array.reshape(-1).tolist():
        if isinstance(item, str):
            items.append(item.encode())
        else:
            items.append(bytes(item))
    return object_array(items).reshape(array.shape)


def object_array(items: Sequence[Any]) -> Array:
    """Return a one-dimensional object array; NumPy would make fixed-size strings."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
