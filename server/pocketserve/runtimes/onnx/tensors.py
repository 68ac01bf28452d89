"""What goes into an ONNX model and comes out of it: specs, and outputs that are no tensors made to tensors.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES

from .check import GraphFacts

_DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}
"""ONNX Runtime's element types. It also has 8-, 4- and 2-bit ones, which the protocol cannot carry."""


@dataclass(frozen=True, slots=True)
class Plain:
    """An output that is a tensor.

    Attributes:
        unsure: the file does not tell its shape.
    """

    specs: tuple[TensorSpec, ...]
    unsure: bool

    def arrays(self, value: Any) -> dict[str, Array]:
        """A run's value as an array by the output's name; text as UTF-8 ``bytes``, dtype object."""
        (spec,) = self.specs
        return {spec.name: _with_bytes(np.asarray(value)) if spec.datatype == "BYTES" else np.asarray(value)}

    def learned(self, seen: Sequence[Mapping[str, Array]], everything: bool) -> Plain:
        """With the shape that runs on zeros gave, where the file does not tell it; see :func:`_with_seen`."""
        if not self.unsure:
            return self
        (spec,) = self.specs
        return replace(self, specs=(_with_seen(spec, seen, everything),))


@dataclass(frozen=True, slots=True)
class Stack:
    """An output that is a sequence of tensors: the elements and their shapes."""

    specs: tuple[TensorSpec, TensorSpec]
    unsure: bool = True

    def arrays(self, value: Any) -> dict[str, Array]:
        """A run's list of arrays as two: ``NAME`` and ``NAME.shapes``, as the module's text describes."""
        elements, shapes = self.specs
        items = [np.asarray(item) for item in value]
        stacked = self._stacked(items)
        result = _with_bytes(stacked) if elements.datatype == "BYTES" else stacked
        return {elements.name: result, shapes.name: self._shapes(items)}

    def learned(self, seen: Sequence[Mapping[str, Array]], everything: bool) -> Stack:
        """With the shapes that runs on zeros gave; see :func:`_with_seen`. The number of elements stays free."""
        # How many elements there are may depend on the values, which were all zero.
        elements, shapes = (_with_seen(spec, seen, everything) for spec in self.specs)
        elements, shapes = (spec._replace(shape=(-1, *spec.shape[1:])) for spec in (elements, shapes))
        return replace(self, specs=(elements, shapes))

    def _stacked(self, items: Sequence[Array]) -> Array:
        spec = self.specs[0]
        if not items:
            return np.empty((0, *(max(size, 0) for size in spec.shape[1:])), DATATYPES[spec.datatype].typestr)
        if len({item.shape for item in items}) == 1:
            return np.stack(items)
        return np.concatenate([item.reshape(-1) for item in items])

    def _shapes(self, items: Sequence[Array]) -> Array:
        rank = max((item.ndim for item in items), default=max(self.specs[1].shape[-1], 0))
        rows = [(*item.shape, *[-1] * (rank - item.ndim)) for item in items]
        return np.array(rows, np.int64).reshape(len(items), rank)


@dataclass(frozen=True, slots=True)
class Table:
    """An output that is a map, or a sequence of maps with a row for each.

    Attributes:
        known: keys as runs on zeros gave them: no row tells them when a batch is empty.
    """

    specs: tuple[TensorSpec, TensorSpec]
    known: tuple[Any, ...] = ()
    unsure: bool = True

    def arrays(self, value: Any) -> dict[str, Array]:
        """A run's map, or list of maps, as two arrays: ``NAME.keys`` and ``NAME.values``, as the module's text says."""
        keys, values = self.specs
        rows = [value] if isinstance(value, Mapping) else value
        names = list(dict.fromkeys(itertools.chain.from_iterable(rows))) or list(self.known)
        table = np.array(
            [[row.get(name, math.nan) for name in names] for row in rows], DATATYPES[values.datatype].typestr
        )
        table = table.reshape(len(rows), len(names))
        return {
            keys.name: _with_bytes(object_array(names)) if keys.datatype == "BYTES" else np.array(names, np.int64),
            values.name: table[0] if isinstance(value, Mapping) else table,
        }

    def learned(self, seen: Sequence[Mapping[str, Array]], everything: bool) -> Table:
        """With the shapes and the keys that runs on zeros gave; see :func:`_with_seen`."""
        keys, values = (_with_seen(spec, seen, everything) for spec in self.specs)
        known = seen[0][keys.name].tolist()
        return replace(self, specs=(keys, values), known=tuple(known))


Output = Plain | Stack | Table

_TENSOR = re.compile(r"tensor\((\w+)\)")
_SEQUENCE = re.compile(r"seq\(tensor\((\w+)\)\)")
_MAPS = re.compile(r"(seq\()?map\((int64|string),tensor\((float|double)\)\)\)?")


def input_spec(arg: Any, facts: GraphFacts) -> TensorSpec:
    """An input's spec; free dimensions are -1, and a shape that the file does not tell is ``open``.

    Args:
        arg: ONNX Runtime's ``NodeArg``.

    Raises:
        ModelLoadError: it is no tensor, or of a type that the protocol cannot carry.
    """
    kind = _TENSOR.fullmatch(arg.type)
    if kind is None:
        raise ModelLoadError(
            f"input {arg.name!r} is of type {arg.type}, and only tensors can be sent; "
            "export the model with tensors as inputs"
        )
    unranked = arg.name in facts.unranked and not arg.shape
    batch = arg.shape[0] if arg.shape and isinstance(arg.shape[0], str) else ""
    return TensorSpec(arg.name, _datatype(arg, kind[1]), (-1,) if unranked else _shape(arg), open=unranked, batch=batch)


def output_of(arg: Any, facts: GraphFacts) -> Output:
    """Return how an output becomes tensors; ``unsure`` where the file does not tell its shapes.

    Args:
        arg: ONNX Runtime's ``NodeArg``.

    Raises:
        ModelLoadError: the protocol cannot carry its type.
    """
    if kind := _TENSOR.fullmatch(arg.type):
        unranked = arg.name in facts.unranked and not arg.shape
        return Plain((TensorSpec(arg.name, _datatype(arg, kind[1]), (-1,) if unranked else _shape(arg)),), unranked)
    if (kind := _SEQUENCE.fullmatch(arg.type)) and kind[1] != "bfloat16":
        shapes = TensorSpec(f"{arg.name}.shapes", "INT64", (-1, -1))
        return Stack((TensorSpec(arg.name, _datatype(arg, kind[1]), (-1,)), shapes))
    if kind := _MAPS.fullmatch(arg.type):
        keys = TensorSpec(f"{arg.name}.keys", _datatype(arg, kind[2]), (-1,))
        values = TensorSpec(f"{arg.name}.values", _datatype(arg, kind[3]), (-1, -1) if kind[1] else (-1,))
        return Table((keys, values))
    raise ModelLoadError(
        f"output {arg.name!r} is of type {arg.type}, which cannot be served; export the model with tensors as outputs"
    )


def _datatype(arg: Any, element: str) -> str:
    if element not in _DATATYPES:
        raise ModelLoadError(
            f"tensor {arg.name!r} is of type {element}, which cannot be served; convert the model with another type"
        )
    return _DATATYPES[element]


def _shape(arg: Any) -> tuple[int, ...]:
    """Names and None, which stand for free dimensions, become -1."""
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in arg.shape)


def check_bfloat16(by_value: bool, inputs: Iterable[TensorSpec], outputs: Iterable[Output]) -> None:
    """Refuse bfloat16 outputs beside what cannot be exchanged in the same way.

    Args:
        by_value: there are bfloat16 outputs.

    Raises:
        ModelLoadError: strings go in, or sequences or maps come out, beside them.
    """
    strings = any(spec.datatype == "BYTES" for spec in inputs)
    if by_value and (strings or not all(isinstance(output, Plain) for output in outputs)):
        raise ModelLoadError(
            "the model has bfloat16 outputs beside strings, sequences or maps, which onnxruntime cannot exchange at "
            "once; convert it with float32 outputs"
        )


def check_names(specs: Sequence[TensorSpec]) -> None:
    """Refuse outputs whose names, once parts such as ``.keys`` are added, are the same.

    Raises:
        ModelLoadError: two are.
    """
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ModelLoadError("two outputs would have the same name; export the model with other output names")


def _with_seen(spec: TensorSpec, seen: Sequence[Mapping[str, Array]], everything: bool) -> TensorSpec:
    """A spec with the shape that all runs on zeros agree on.

    Args:
        everything: all runs worked; if not, how sizes follow the caller's is not known.
    """
    shapes = [result[spec.name].shape for result in seen]
    if len({len(shape) for shape in shapes}) != 1:
        return spec._replace(shape=(-1,))
    sizes = (set(column) for column in zip(*shapes, strict=True))
    return spec._replace(shape=tuple(_agreed(column) if everything else -1 for column in sizes))


def _agreed(sizes: set[int]) -> int:
    """A size of 0 follows from the values."""
    return next(iter(sizes)) if len(sizes) == 1 and 0 not in sizes else -1


def _with_bytes(array: Array) -> Array:
    items = [item.encode() if isinstance(item, str) else bytes(item) for item in array.reshape(-1).tolist()]
    return object_array(items).reshape(array.shape)


def object_array(items: Sequence[Any]) -> Array:
    """Text or bytes in one dimension, which NumPy would make fixed-size strings of."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
