"""Specs of an ONNX model's inputs and outputs, and conversion of outputs to tensors.

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
        rank = max((item.ndim for item in items), default=max(shapes.shape[-1], 0))
        rows = [(*item.shape, *[-1] * (rank - item.ndim)) for item in items]
        if not items:
            sizes = (max(size, 0) for size in elements.shape[1:])
            joined = np.empty((0, *sizes), DATATYPES[elements.datatype].typestr)
        elif len({item.shape for item in items}) == 1:
            joined = np.stack(items)
        else:
            joined = np.concatenate([item.reshape(-1) for item in items])
        return {
            elements.name: _encoded(joined, elements),
            shapes.name: np.array(rows, np.int64).reshape(len(items), rank),
        }

    def learned(self, probe: Probe) -> SequenceOutput:
        """Return the output with the shapes from runs on zeros."""
        elements, shapes = map(probe.learned, self.specs)
        # The number of elements may depend on the values, so it stays free.
        elements = elements._replace(shape=(-1, *elements.shape[1:]))
        shapes = shapes._replace(shape=(-1, *shapes.shape[1:]))
        return self._replace(specs=(elements, shapes))


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
        rows = [value] if is_single else value
        unique = dict.fromkeys(itertools.chain.from_iterable(rows))
        names = list(unique or self.keys)
        cells = []
        for row in rows:
            cells.append([row.get(name, math.nan) for name in names])
        table = np.array(cells, DATATYPES[values.datatype].typestr)
        table = table.reshape(len(rows), len(names))
        labels = object_array(names)
        if keys.datatype == "INT64":
            labels = labels.astype(np.int64)
        labels = _encoded(labels, keys)
        return {keys.name: labels, values.name: table[0] if is_single else table}

    def learned(self, probe: Probe) -> MapOutput:
        """Return the output with the shapes and keys from runs on zeros."""
        keys, values = map(probe.learned, self.specs)
        names = probe.results[0][keys.name].tolist()
        return self._replace(specs=(keys, values), keys=tuple(names))


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
    batch = arg.shape[0] if arg.shape and isinstance(arg.shape[0], str) else ""
    return spec._replace(open=unranked, batch=batch)


def output_of(arg: Any, facts: GraphFacts) -> Output:
    """Return the conversion of an output (a ``NodeArg``) to tensors."""
    kind = _TENSOR.fullmatch(arg.type)
    if kind:
        spec, unranked = _tensor_spec(arg, kind[1], facts)
        return TensorOutput((spec,), unranked)
    kind = _SEQUENCE.fullmatch(arg.type)
    if kind and kind[1] != "bfloat16":
        elements = TensorSpec(arg.name, _datatype(arg, kind[1]), (-1,))
        shapes = TensorSpec(f"{arg.name}.shapes", "INT64", (-1, -1))
        return SequenceOutput((elements, shapes))
    kind = _MAPS.fullmatch(arg.type)
    if kind:
        keys = TensorSpec(f"{arg.name}.keys", _datatype(arg, kind[2]), (-1,))
        shape = (-1, -1) if kind[1] else (-1,)
        values = TensorSpec(f"{arg.name}.values", _datatype(arg, kind[3]), shape)
        return MapOutput((keys, values))
    raise ModelLoadError(
        f"output {arg.name!r} is of type {arg.type}, which cannot be served; export the "
        "model with tensors as outputs"
    )


def _tensor_spec(arg: Any, element: str, facts: GraphFacts) -> tuple[TensorSpec, bool]:
    """Return a tensor's spec, and whether the file lacks its shape."""
    datatype = _datatype(arg, element)
    if arg.name in facts.unranked and not arg.shape:
        return TensorSpec(arg.name, datatype, (-1,)), True
    shape = []
    for size in arg.shape:
        # Names and None are free dimensions.
        is_fixed = isinstance(size, int) and size >= 0
        shape.append(size if is_fixed else -1)
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
    items = [
        item.encode() if isinstance(item, str) else bytes(item)
        for item in array.reshape(-1).tolist()
    ]
    return object_array(items).reshape(array.shape)


def object_array(items: Sequence[Any]) -> Array:
    """Return a one-dimensional object array; NumPy would make fixed-size strings."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
