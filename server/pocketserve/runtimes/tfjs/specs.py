"""Specs of a TensorFlow.js model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import TensorSpec

from .files import ModelFiles

DATATYPES = {"float32": "FP32", "int32": "INT32", "bool": "BOOL"}
DTYPE_NAMES = {datatype: dtype for dtype, datatype in DATATYPES.items()}
DTYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4"), "bool": np.dtype("?")}
_GRAPH_TYPES = {
    "DT_FLOAT": "float32",
    "DT_HALF": "float32",
    "DT_DOUBLE": "float32",
    "DT_BOOL": "bool",
}
_GRAPH_TYPES |= dict.fromkeys(
    ("DT_INT8", "DT_UINT8", "DT_INT16", "DT_UINT16", "DT_INT32", "DT_INT64"), "int32"
)
# Other signatures write the enumeration of TensorFlow's types.proto as numbers.
_TYPE_NUMBERS = {
    1: "DT_FLOAT",
    2: "DT_DOUBLE",
    3: "DT_INT32",
    4: "DT_UINT8",
    5: "DT_INT16",
    6: "DT_INT8",
}
_TYPE_NUMBERS |= {9: "DT_INT64", 10: "DT_BOOL", 17: "DT_UINT16", 19: "DT_HALF"}


def input_specs(
    entries: Sequence[Mapping[str, Any]], files: ModelFiles
) -> list[TensorSpec]:
    """Return the inputs in the model's order, with the signature's names as aliases; open where the rank is unknown."""
    keys = {
        _node(str(info.get("name", key))): key
        for key, info in _infos(files, "inputs").items()
    }
    specs = []
    for entry in entries:
        name, dtype, shape = str(entry["name"]), entry["dtype"], entry["shape"]
        if dtype not in DATATYPES:
            raise ModelLoadError(
                f"input {name!r} of {files.title} is of type {dtype}, which cannot be served"
            )
        aliases = _aliases(
            name, keys.get(name, name), f"{name}:0" if files.graph else name
        )
        sizes = (-1,) if shape is None else _free(shape)
        specs.append(
            TensorSpec(
                name, DATATYPES[dtype], sizes, aliases=aliases, open=shape is None
            )
        )
    return specs


def output_specs(description: Mapping[str, Any], files: ModelFiles) -> list[TensorSpec]:
    """Return the outputs; those of which the file says too little are open.

    TensorFlow.js calls a graph's outputs as its signature does, else as their nodes are called.
    """
    if not files.graph:
        return [_output_spec(entry, {}) for entry in description["outputs"]]
    infos = _infos(files, "outputs")
    nodes = {entry["name"]: entry for entry in description["outputs"]}
    specs = []
    for name in description["nodes"]:
        info = infos.get(name, {})
        node = nodes.get(_node(str(info.get("name", name))), {})
        specs.append(
            _output_spec({"dtype": None, "shape": None, **node, "name": name}, info)
        )
    return specs


def _output_spec(entry: Mapping[str, Any], info: Mapping[str, Any]) -> TensorSpec:
    name = str(entry["name"])
    tensor = str(info.get("name", name))
    dtype = _graph_dtype(info.get("dtype")) or entry["dtype"]
    shape = _graph_shape(info) if info else entry["shape"]
    aliases = _aliases(name, tensor, _node(tensor))
    if dtype not in DATATYPES or shape is None:
        return TensorSpec(
            name, DATATYPES.get(dtype or "", "FP32"), (-1,), aliases=aliases, open=True
        )
    return TensorSpec(name, DATATYPES[dtype], _free(shape), aliases=aliases)


def _infos(files: ModelFiles, role: str) -> dict[str, Mapping[str, Any]]:
    """Return the signature's entries by the signature's name."""
    entries = files.signature.get(role)
    pairs = entries.items() if isinstance(entries, dict) else ()
    return {str(key): info for key, info in pairs if isinstance(info, dict)}


def _aliases(name: str, *candidates: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(alias for alias in candidates if alias != name))


def _node(tensor: str) -> str:
    return tensor.removesuffix(":0")


def _graph_dtype(code: Any) -> str | None:
    return _GRAPH_TYPES.get(
        _TYPE_NUMBERS.get(code, "") if isinstance(code, int) else str(code)
    )


def _graph_shape(info: Mapping[str, Any]) -> list[int] | None:
    """Read a TensorShapeProto in JSON, which writes its sizes as text; a scalar's may be missing altogether."""
    shape = info.get("tensorShape")
    if not isinstance(shape, dict) or shape.get("unknownRank"):
        return None
    return [int(dimension.get("size", -1)) for dimension in shape.get("dim") or ()]


def _free(shape: Iterable[Any]) -> tuple[int, ...]:
    return tuple(-1 if size is None or int(size) < 0 else int(size) for size in shape)
