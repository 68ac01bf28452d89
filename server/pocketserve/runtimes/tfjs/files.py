"""Check the files of a TensorFlow.js model before Node opens them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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
        with file_errors(title):
            if path.stat().st_size > MAX_MODEL_JSON_BYTES:
                raise ModelLoadError(
                    f"{title} is larger than {MAX_MODEL_JSON_BYTES} bytes"
                )
            document = json.loads(path.read_bytes())
        groups = [
            _check_group(path, title, group) for group in document["weightsManifest"]
        ]
        topology = document["modelTopology"]
        topology = json.loads(topology) if isinstance(topology, str) else topology
        graph = document.get("format") == "graph-model" or "node" in topology
        signature = document.get("signature") or (
            document.get("userDefinedMetadata") or {}
        ).get("signature")
        stateful = not graph and any(
            layer.get("stateful") for layer in dictionaries(topology)
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelLoadError(
            f"{title} is no whole TensorFlow.js model ({type(error).__name__}: "
            f"{str(error)[:100]}); copy or convert it again"
        ) from error
    return ModelFiles(
        path.absolute(),
        title,
        tuple(shard for shards, _ in groups for shard in shards),
        graph,
        signature if isinstance(signature, dict) else {},
        sum(memory_bytes for _, memory_bytes in groups),
        stateful,
    )


def _check_group(
    model: Path, title: str, group: Mapping[str, Any]
) -> tuple[list[Path], int]:
    """Check a group of weights; return its files and its size in memory."""
    files = [weight_file(model, title, name, _NO_FILE) for name in group["paths"]]
    weights = [
        (weight.get("quantization") or weight, _count(weight["shape"]))
        for weight in group["weights"]
    ]
    # The size of texts depends on their content.
    if all(weight["dtype"] != "string" for weight in group["weights"]):
        size = sum(size for _, size in files)
        expected = sum(
            count * _STORED_BYTES[str(stored["dtype"])] for stored, count in weights
        )
        if size != expected:
            names = ", ".join(map(str, group["paths"][:3]))
            if len(group["paths"]) > 3:
                names += " …"
            raise ModelLoadError(
                f"{title}: the weights in {names} have {size} bytes and must have "
                f"{expected}; copy the files again"
            )
    return [path for path, _ in files], sum(4 * count for _, count in weights)


def _count(shape: Any) -> int:
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes):
        raise ValueError("a weight has a negative size")
    return math.prod(sizes)
