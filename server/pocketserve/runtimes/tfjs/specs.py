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
    """Return the inputs, with the signature's names as aliases.

    Inputs of unknown rank are open.
    """
    keys = {}
    for key, info in _infos(files, "inputs").items():
        tensor = str(info.get("name", key))
        keys[_node(tensor)] = key
    specs = []
    for entry in entries:
        name = str(entry["name"])
        tensor = name
        if files.graph:
            tensor = f"{name}:0"
        aliases = _aliases(name, keys.get(name, name), tensor)
        specs.append(_input_spec(entry, aliases, files.title))
    return specs


def _input_spec(
    entry: Mapping[str, Any], aliases: tuple[str, ...], title: str
) -> TensorSpec:
    """Describe an input."""
    name = str(entry["name"])
    dtype = entry["dtype"]
    if dtype not in DATATYPES:
        raise ModelLoadError(
            f"input {name!r} of {title} is of type {dtype}, which cannot be served"
        )
    datatype = DATATYPES[dtype]
    if entry["shape"] is None:
        return TensorSpec(name, datatype, (-1,), aliases=aliases, open=True)
    shape = _free(entry["shape"])
    return TensorSpec(name, datatype, shape, aliases=aliases)


def output_specs(description: Mapping[str, Any], files: ModelFiles) -> list[TensorSpec]:
    """Return the outputs; those without a full description in the file are open.

    TensorFlow.js names a graph's outputs like its signature, or else like their nodes.
    """
    if not files.graph:
        return [_output_spec(entry, {}) for entry in description["outputs"]]
    infos = _infos(files, "outputs")
    nodes = {entry["name"]: entry for entry in description["outputs"]}
    specs = []
    for name in description["nodes"]:
        info = infos.get(name, {})
        node = nodes.get(_node(str(info.get("name", name))), {})
        entry = {
            "name": name,
            "dtype": node.get("dtype"),
            "shape": node.get("shape"),
        }
        specs.append(_output_spec(entry, info))
    return specs


def _output_spec(entry: Mapping[str, Any], info: Mapping[str, Any]) -> TensorSpec:
    """Describe an output; its entry of the signature takes precedence."""
    name = str(entry["name"])
    tensor = str(info.get("name", name))
    aliases = _aliases(name, tensor, _node(tensor))
    dtype = _graph_dtype(info.get("dtype")) or entry["dtype"]
    shape = entry["shape"]
    if info:
        shape = _graph_shape(info)
    if dtype not in DATATYPES or shape is None:
        datatype = DATATYPES.get(dtype or "", "FP32")
        return TensorSpec(name, datatype, (-1,), aliases=aliases, open=True)
    datatype = DATATYPES[dtype]
    return TensorSpec(name, datatype, _free(shape), aliases=aliases)


def _infos(files: ModelFiles, role: str) -> dict[str, Mapping[str, Any]]:
    """Return the signature's entries by the signature's name."""
    entries = files.signature.get(role)
    if not isinstance(entries, dict):
        return {}
    infos: dict[str, Mapping[str, Any]] = {}
    for key, info in entries.items():
        if isinstance(info, dict):
            infos[str(key)] = info
    return infos


def _aliases(name: str, *candidates: str) -> tuple[str, ...]:
    aliases = dict.fromkeys(candidates)
    aliases.pop(name, None)
    return tuple(aliases)


def _node(tensor: str) -> str:
    return tensor.removesuffix(":0")


def _graph_dtype(code: Any) -> str | None:
    if isinstance(code, int):
        code = _TYPE_NUMBERS.get(code, "")
    return _GRAPH_TYPES.get(str(code))


def _graph_shape(info: Mapping[str, Any]) -> list[int] | None:
    """Read a TensorShapeProto in JSON; return None for an unknown shape.

    Sizes are written as text. A scalar may lack its dimensions.

    Raises:
        ModelLoadError: it is damaged.
    """
    shape = info.get("tensorShape")
    if not isinstance(shape, dict) or shape.get("unknownRank"):
        return None
    dimensions = shape.get("dim") or ()
    try:
        return [int(dimension.get("size", -1)) for dimension in dimensions]
    except (AttributeError, OverflowError, TypeError, ValueError):
        raise ModelLoadError(
            f"model.json: a signature's shape is damaged: {shape!r:.80}"
        ) from None


def _free(shape: Iterable[Any]) -> tuple[int, ...]:
    """Return sizes with -1 for the unknown ones."""
    sizes = []
    for size in shape:
        if size is None or int(size) < 0:
            sizes.append(-1)
        else:
            sizes.append(int(size))
    return tuple(sizes)
