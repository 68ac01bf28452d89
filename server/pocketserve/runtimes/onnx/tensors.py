"""Specs of an ONNX model's inputs and outputs, and outputs that are no tensors made to tensors.

* ``NAME`` of type map or sequence of maps (what scikit-learn's classifiers give as probabilities) becomes
  ``NAME.keys``, INT64 or BYTES of shape [classes], and ``NAME.values``, FP32 or FP64 of shape [classes] or
  [rows, classes]. Keys come in their sorted order; a key that a row lacks has the value NaN.
* ``NAME`` of type sequence of tensors becomes ``NAME``, the elements stacked to shape [count, ...] if their shapes
  agree, else their values one after the other in one dimension, and ``NAME.shapes``, INT64 of shape [count, rank], with
  the shape of each element (filled up with -1 where ranks differ).
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
"""ONNX Runtime's element types. It also has 8-, 4- and 2-bit ones, which the protocol cannot carry."""


class TensorOutput(NamedTuple):
    """An output that is a tensor."""

    specs: tuple[TensorSpec, ...]
    unsure: bool  # the file does not tell its shape

    def arrays(self, value: Any) -> dict[str, Array]:
        """Return a run's value as arrays by name; text as UTF-8 ``bytes``, dtype object."""
        (spec,) = self.specs
        return {spec.name: _encoded(np.asarray(value), spec)}

    def learned(self, probe: Probe) -> TensorOutput:
        """Return the output with the shape that runs on zeros gave, where the file does not tell it."""
        return (
            self._replace(specs=(probe.learned(self.specs[0]),))
            if self.unsure
            else self
        )


class SequenceOutput(NamedTuple):
    """An output that is a sequence of tensors: the elements and their shapes."""

    specs: tuple[TensorSpec, TensorSpec]
    unsure: bool = True

    def arrays(self, value: Any) -> dict[str, Array]:
        """Return a run's list of arrays as two: ``NAME`` and ``NAME.shapes``."""
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
        """Return the output with the shapes that runs on zeros gave."""
        elements, shapes = map(probe.learned, self.specs)
        # How many elements there are may depend on the values, which were all zero.
        elements, shapes = (
            spec._replace(shape=(-1, *spec.shape[1:])) for spec in (elements, shapes)
        )
        return self._replace(specs=(elements, shapes))


class MapOutput(NamedTuple):
    """An output that is a map, or a sequence of maps with a row for each."""

    specs: tuple[TensorSpec, TensorSpec]
    keys: tuple[
        Any, ...
    ] = ()  # as runs on zeros gave them: no row tells them when a batch is empty
    unsure: bool = True

    def arrays(self, value: Any) -> dict[str, Array]:
        """Return a run's map, or list of maps, as two arrays: ``NAME.keys`` and ``NAME.values``."""
        keys, values = self.specs
        rows = [value] if isinstance(value, Mapping) else value
        names = list(dict.fromkeys(itertools.chain.from_iterable(rows))) or list(
            self.keys
        )
        cells = [[row.get(name, math.nan) for name in names] for row in rows]
        table = np.array(cells, DATATYPES[values.datatype].typestr).reshape(
            len(rows), len(names)
        )
        return {
            keys.name: _encoded(object_array(names), keys)
            if keys.datatype == "BYTES"
            else np.array(names, np.int64),
            values.name: table[0] if isinstance(value, Mapping) else table,
        }

    def learned(self, probe: Probe) -> MapOutput:
        """Return the output with the shapes and the keys that runs on zeros gave."""
        keys, values = map(probe.learned, self.specs)
        return self._replace(
            specs=(keys, values), keys=tuple(probe.results[0][keys.name].tolist())
        )


Output = TensorOutput | SequenceOutput | MapOutput

_TENSOR = re.compile(r"tensor\((\w+)\)")
_SEQUENCE = re.compile(r"seq\(tensor\((\w+)\)\)")
_MAPS = re.compile(r"(seq\()?map\((int64|string),tensor\((float|double)\)\)\)?")


def input_spec(arg: Any, facts: GraphFacts) -> TensorSpec:
    """Return the spec of an input (a ``NodeArg``); a shape that the file does not tell is ``open``."""
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
    """Return how an output (a ``NodeArg``) becomes tensors."""
    if kind := _TENSOR.fullmatch(arg.type):
        spec, unranked = _tensor_spec(arg, kind[1], facts)
        return TensorOutput((spec,), unranked)
    if (kind := _SEQUENCE.fullmatch(arg.type)) and kind[1] != "bfloat16":
        shapes = TensorSpec(f"{arg.name}.shapes", "INT64", (-1, -1))
        return SequenceOutput(
            (TensorSpec(arg.name, _datatype(arg, kind[1]), (-1,)), shapes)
        )
    if kind := _MAPS.fullmatch(arg.type):
        keys = TensorSpec(f"{arg.name}.keys", _datatype(arg, kind[2]), (-1,))
        values = TensorSpec(
            f"{arg.name}.values",
            _datatype(arg, kind[3]),
            (-1, -1) if kind[1] else (-1,),
        )
        return MapOutput((keys, values))
    raise ModelLoadError(
        f"output {arg.name!r} is of type {arg.type}, which cannot be served; export the model with tensors as outputs"
    )


def _tensor_spec(arg: Any, element: str, facts: GraphFacts) -> tuple[TensorSpec, bool]:
    """Return a tensor's spec, and whether the file does not tell its shape."""
    unranked = arg.name in facts.unranked and not arg.shape
    # Names and None stand for free dimensions.
    shape = tuple(
        size if isinstance(size, int) and size >= 0 else -1 for size in arg.shape
    )
    return TensorSpec(
        arg.name, _datatype(arg, element), (-1,) if unranked else shape
    ), unranked


def _datatype(arg: Any, element: str) -> str:
    if element not in _DATATYPES:
        raise ModelLoadError(
            f"tensor {arg.name!r} is of type {element}, which cannot be served; convert the model with another type"
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
    """Return text or bytes in one dimension, which NumPy would make fixed-size strings of."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
