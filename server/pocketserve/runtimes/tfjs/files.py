"""Check the files of a TensorFlow.js model before Node opens them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_files import dictionaries, file_errors, weight_file

MAX_MODEL_JSON_BYTES = 64 * 2**20  # without weights; real ones have a few megabytes
_NO_FILE = r"\\|://|[\ud800-\udfff]"  # a Windows separator, a URL, a surrogate
_STORED_BYTES = {
    "float32": 4,
    "int32": 4,
    "bool": 1,
    "complex64": 8,
    "uint8": 1,
    "uint16": 2,
    "float16": 2,
}


class ModelFiles(NamedTuple):
    """A model's checked files."""

    path: Path  # the ``model.json``
    title: str  # the model's name in messages
    shards: tuple[Path, ...]  # the weight files in order, absolute
    graph: bool  # whether it is a graph model; else a layers model
    signature: Mapping[str, Any]  # a graph model's tensors, from its file
    memory_bytes: int  # the weights in memory
    stateful: bool  # whether a layer keeps state between runs


def read_files(path: Path) -> ModelFiles:
    """Read ``model.json`` and check the weight files in its folder."""
    title = f"{path.parent.name}/{path.name}"
    try:
        document = _read_document(path, title)
        groups = []
        for group in document["weightsManifest"]:
            groups.append(_check_group(path, title, group))
        topology = document["modelTopology"]
        if isinstance(topology, str):
            topology = json.loads(topology)
        is_graph = document.get("format") == "graph-model" or "node" in topology
        signature = _signature(document)
        is_stateful = not is_graph and _has_stateful_layer(topology)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelLoadError(
            f"{title} is not a complete TensorFlow.js model ({type(error).__name__}: "
            f"{str(error)[:100]}); copy or convert it again"
        ) from error
    shards: list[Path] = []
    memory_bytes = 0
    for group in groups:
        shards += group.files
        memory_bytes += group.memory_bytes
    return ModelFiles(
        path=path.absolute(),
        title=title,
        shards=tuple(shards),
        graph=is_graph,
        signature=signature,
        memory_bytes=memory_bytes,
        stateful=is_stateful,
    )


def _read_document(path: Path, title: str) -> Any:
    with file_errors(title):
        if path.stat().st_size > MAX_MODEL_JSON_BYTES:
            raise ModelLoadError(f"{title} is larger than {MAX_MODEL_JSON_BYTES} bytes")
        return json.loads(path.read_bytes())


def _signature(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a model's signature, in either of its places; empty without one."""
    signature = document.get("signature")
    if not signature:
        metadata = document.get("userDefinedMetadata") or {}
        signature = metadata.get("signature")
    if isinstance(signature, dict):
        return signature
    return {}


def _has_stateful_layer(topology: Any) -> bool:
    return any(layer.get("stateful") for layer in dictionaries(topology))


class _WeightGroup(NamedTuple):
    """The files of a group of weights, and its size in memory."""

    files: Sequence[Path]
    memory_bytes: int


def _check_group(model: Path, title: str, group: Mapping[str, Any]) -> _WeightGroup:
    """Check the files of a group of weights."""
    names = group["paths"]
    files = []
    file_bytes = 0
    for name in names:
        path, size = weight_file(model, title, name, _NO_FILE)
        files.append(path)
        file_bytes += size
    weights = group["weights"]
    elements = sum(_count(weight["shape"]) for weight in weights)
    expected = _stored_bytes(weights)
    if expected is not None and file_bytes != expected:
        raise ModelLoadError(
            f"{title}: the weights in {_listed(names)} have {file_bytes} "
            f"bytes and must have {expected}; copy the files again"
        )
    return _WeightGroup(files, 4 * elements)


def _listed(names: Sequence[Any]) -> str:
    text = ", ".join(map(str, names[:3]))
    if len(names) > 3:
        text += " …"
    return text


def _stored_bytes(weights: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the size of weights in their files; None if they include texts.

    The size of texts depends on their content.
    """
    if any(weight["dtype"] == "string" for weight in weights):
        return None
    total = 0
    for weight in weights:
        stored = weight.get("quantization") or weight
        total += _count(weight["shape"]) * _STORED_BYTES[str(stored["dtype"])]
    return total


def _count(shape: Any) -> int:
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes):
        raise ValueError("a weight has a negative size")
    return math.prod(sizes)
