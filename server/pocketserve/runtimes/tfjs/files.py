"""The files of a TensorFlow.js model, checked before Node sees them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_files import file_errors, weight_file

MAX_MODEL_JSON_BYTES = 64 * 2**20  # the graph without its weights; the largest in the wild have a few megabytes
_STORED_BYTES = {"float32": 4, "int32": 4, "bool": 1, "complex64": 8, "uint8": 1, "uint16": 2, "float16": 2}


class ModelFiles(NamedTuple):
    """A model's files, checked."""

    path: Path  # the ``model.json``
    title: str  # how the model is called in texts
    shards: tuple[Path, ...]  # the weight files in order, absolute
    graph: bool  # whether it is a graph model; else a layers model
    signature: Mapping[str, Any]  # what a graph model's file says of its tensors
    memory_bytes: int  # the weights in memory
    stateful: bool  # whether a layer keeps state from run to run


def read_files(path: Path) -> ModelFiles:
    """Read ``model.json`` and check that the weights are there, whole, and inside its folder."""
    title = f"{path.parent.name}/{path.name}"
    try:
        with file_errors(title):
            if path.stat().st_size > MAX_MODEL_JSON_BYTES:
                raise ModelLoadError(f"{title} is larger than {MAX_MODEL_JSON_BYTES} bytes")
            document = json.loads(path.read_bytes())
        groups = [_WeightGroup.parse(group) for group in document["weightsManifest"]]
        topology = document["modelTopology"]
        topology = json.loads(topology) if isinstance(topology, str) else topology
        graph = document.get("format") == "graph-model" or "node" in topology
        signature = document.get("signature") or (document.get("userDefinedMetadata") or {}).get("signature")
        stateful = not graph and _has_stateful_layer(topology)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelLoadError(
            f"{title} is no whole TensorFlow.js model ({type(error).__name__}: {str(error)[:100]}); copy or convert it "
            "again"
        ) from error
    return ModelFiles(
        path.absolute(),
        title,
        tuple(shard for group in groups for shard in _check_shards(path, group, title)),
        graph,
        signature if isinstance(signature, dict) else {},
        sum(group.memory_bytes for group in groups),
        stateful,
    )


def _has_stateful_layer(topology: Any) -> bool:
    pending = [topology]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if item.get("stateful"):
                return True
            pending += item.values()
        elif isinstance(item, list):
            pending += item
    return False


class _WeightGroup(NamedTuple):
    """Weights that lie one after the other in files."""

    paths: list[Any]  # as the file writes them
    memory_bytes: int  # once the weights are real numbers
    stored_bytes: int | None  # None where there is text among the weights, whose size only its content tells

    @classmethod
    def parse(cls, group: Mapping[str, Any]) -> _WeightGroup:
        weights = [(weight.get("quantization") or weight, _count(weight["shape"])) for weight in group["weights"]]
        memory_bytes = sum(4 * count for _, count in weights)
        if any(weight["dtype"] == "string" for weight in group["weights"]):
            return cls(list(group["paths"]), memory_bytes, None)
        stored_bytes = sum(count * _STORED_BYTES[str(stored["dtype"])] for stored, count in weights)
        return cls(list(group["paths"]), memory_bytes, stored_bytes)


def _count(shape: Any) -> int:
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes):
        raise ValueError("a weight has a negative size")
    return math.prod(sizes)


def _check_shards(model: Path, group: _WeightGroup, title: str) -> list[Path]:
    shards = [weight_file(model, title, name) for name in group.paths]
    size = sum(size for _, size in shards)
    if group.stored_bytes is not None and size != group.stored_bytes:
        names = ", ".join(map(str, group.paths[:3])) + (" …" if len(group.paths) > 3 else "")
        raise ModelLoadError(
            f"{title}: the weights in {names} have {size} bytes and must have {group.stored_bytes}; copy the files "
            "again"
        )
    return [path for path, _ in shards]
