"""What a TensorFlow.js model takes and gives, from what Node and the model's file tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import Array, TensorSpec

from .files import ModelFiles

DATATYPES = {"float32": "FP32", "int32": "INT32", "bool": "BOOL"}
DTYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4"), "bool": np.dtype("?")}
_GRAPH_TYPES = {"DT_FLOAT": "float32", "DT_HALF": "float32", "DT_DOUBLE": "float32", "DT_BOOL": "bool"}
_GRAPH_TYPES |= dict.fromkeys(("DT_INT8", "DT_UINT8", "DT_INT16", "DT_UINT16", "DT_INT32", "DT_INT64"), "int32")
# Other signatures write the enumeration of TensorFlow's types.proto as numbers.
_TYPE_NUMBERS = {1: "DT_FLOAT", 2: "DT_DOUBLE", 3: "DT_INT32", 4: "DT_UINT8", 5: "DT_INT16", 6: "DT_INT8"}
_TYPE_NUMBERS |= {9: "DT_INT64", 10: "DT_BOOL", 17: "DT_UINT16", 19: "DT_HALF"}


def dtype_of(spec: TensorSpec) -> str:
    """TensorFlow.js's name for a spec's datatype: ``float32``, ``int32`` or ``bool``."""
    return next(dtype for dtype, datatype in DATATYPES.items() if datatype == spec.datatype)


def input_specs(described: Sequence[Mapping[str, Any]], files: ModelFiles) -> list[TensorSpec]:
    """Inputs in the model's order, with the signature's names as aliases; ``open`` where the rank is not known.

    Raises:
        ModelLoadError: an input is neither float32, int32 nor bool.
    """
    signature = _by_tensor(files.signature.get("inputs"))
    specs = []
    for entry in described:
        name, dtype = str(entry["name"]), entry["dtype"]
        if dtype not in DATATYPES:
            raise ModelLoadError(f"input {name!r} of {files.title} is of type {dtype}, which cannot be served")
        key, _ = signature.get(name, (name, {}))
        aliases = _aliases(name, key, f"{name}:0" if files.graph else name)
        if entry["shape"] is None:
            specs.append(TensorSpec(name, DATATYPES[dtype], (-1,), aliases=aliases, open=True))
        else:
            specs.append(TensorSpec(name, DATATYPES[dtype], _free(entry["shape"]), aliases=aliases))
    return specs


def output_specs(described: Mapping[str, Any], files: ModelFiles) -> list[TensorSpec]:
    """Outputs; those of which the file says too little are marked as open.

    TensorFlow.js calls a graph's outputs as its signature does, else as their nodes are called.
    """
    entries = [dict(entry) for entry in described["outputs"]]
    if not files.graph:
        return [_output_spec(entry, {}) for entry in entries]
    outputs = files.signature.get("outputs")
    signature = {str(k): v for k, v in outputs.items() if isinstance(v, dict)} if isinstance(outputs, dict) else {}
    nodes = {entry["name"]: entry for entry in entries}
    specs = []
    for name in described["nodes"]:
        info = signature.get(name, {})
        node = nodes.get(_node(str(info.get("name", name))), {})
        specs.append(_output_spec({"dtype": None, "shape": None, **node, "name": name}, info))
    return specs


def _output_spec(entry: Mapping[str, Any], info: Mapping[str, Any]) -> TensorSpec:
    name = str(entry["name"])
    tensor = str(info.get("name", name))
    dtype = _graph_dtype(info.get("dtype")) or entry["dtype"]
    shape = _graph_shape(info) if info else entry["shape"]
    aliases = _aliases(name, tensor, _node(tensor))
    if dtype not in DATATYPES or shape is None:
        return TensorSpec(name, DATATYPES.get(dtype or "", "FP32"), (-1,), aliases=aliases, open=True)
    return TensorSpec(name, DATATYPES[dtype], _free(shape), aliases=aliases)


def _by_tensor(entries: Any) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """A signature's entries by the node that they mean: its own name for it, and what it says of it."""
    if not isinstance(entries, dict):
        return {}
    named = {str(key): info for key, info in entries.items() if isinstance(info, dict)}
    return {_node(str(info.get("name", key))): (key, info) for key, info in named.items()}


def _aliases(name: str, *others: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(other for other in others if other != name))


def _node(tensor: str) -> str:
    return tensor.removesuffix(":0")


def _graph_dtype(code: Any) -> str | None:
    return _GRAPH_TYPES.get(_TYPE_NUMBERS.get(code, "") if isinstance(code, int) else str(code))


def _graph_shape(info: Mapping[str, Any]) -> list[int] | None:
    """A TensorShapeProto in JSON, which writes its sizes as text; a scalar's may be missing altogether."""
    shape = info.get("tensorShape")
    if not isinstance(shape, dict) or shape.get("unknownRank"):
        return None
    return [int(dimension.get("size", -1)) for dimension in shape.get("dim") or ()]


def _free(shape: Iterable[Any]) -> tuple[int, ...]:
    return tuple(-1 if size is None or int(size) < 0 else int(size) for size in shape)


def as_seen(spec: TensorSpec, array: Array, free: bool) -> TensorSpec:
    """A size of 0 follows from the values; where inputs have free sizes, which were 1, so may a size of 1."""
    unsure = (0, 1) if free else (0,)
    shape = tuple(-1 if size in unsure else size for size in array.shape)
    datatype = next(DATATYPES[dtype] for dtype, kind in DTYPES.items() if kind == array.dtype)
    return replace(spec, datatype=datatype, shape=shape, open=False)
