"""The files of a TensorFlow.js model, checked before Node sees them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import ModelLoadError

MAX_MODEL_JSON_BYTES = 64 * 2**20
"""The graph without its weights; the largest in the wild have a few megabytes."""
_STORED_BYTES = {"float32": 4, "int32": 4, "bool": 1, "complex64": 8, "uint8": 1, "uint16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files, checked.

    Attributes:
        path: the ``model.json``.
        title: how the model is called in texts.
        shards: the weight files in order, absolute.
        graph: whether it is a graph model; else a layers model.
        signature: what a graph model's file says of its tensors.
        memory_bytes: the weights in memory.
        stateful: whether a layer keeps state from run to run.
    """

    path: Path
    title: str
    shards: tuple[Path, ...]
    graph: bool
    signature: Mapping[str, Any]
    memory_bytes: int
    stateful: bool


def read_files(path: Path) -> ModelFiles:
    """Read ``model.json`` and check that the weights are there, whole, and inside its folder.

    Raises:
        ModelLoadError: they are not.
    """
    title = f"{path.parent.name}/{path.name}"
    try:
        document = _read_json(path, title)
        groups = [_Group(group) for group in document["weightsManifest"]]
        topology = document["modelTopology"]
        topology = json.loads(topology) if isinstance(topology, str) else topology
        graph = document.get("format") == "graph-model" or "node" in topology
        signature = document.get("signature") or (document.get("userDefinedMetadata") or {}).get("signature")
        memory_bytes = sum(group.memory_bytes for group in groups)
        stateful = not graph and _says_stateful(topology)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelLoadError(
            f"{title} is no whole TensorFlow.js model ({type(error).__name__}: {str(error)[:100]}); copy or convert it "
            "again"
        ) from error
    shards = [shard for group in groups for shard in _checked_shards(path.parent, group, title)]
    return ModelFiles(
        path.absolute(),
        title,
        tuple(shards),
        graph,
        signature if isinstance(signature, dict) else {},
        memory_bytes,
        stateful,
    )


def _says_stateful(topology: Any) -> bool:
    waiting = [topology]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if item.get("stateful"):
                return True
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return False


class _Group:
    """A group of weights, which lie one after the other in its files.

    Attributes:
        paths: as the file writes them.
        stored_bytes: their size; None where there is text among the weights, whose size only its content tells.
        memory_bytes: once they are real numbers.
    """

    def __init__(self, group: Mapping[str, Any]) -> None:
        self.paths: list[Any] = list(group["paths"])
        counts = [(weight, math.prod(_sizes(weight["shape"]))) for weight in group["weights"]]
        self.memory_bytes = sum(4 * count for _, count in counts)
        self.stored_bytes: int | None = None
        if all(weight["dtype"] != "string" for weight, _ in counts):
            self.stored_bytes = sum(count * _STORED_BYTES[_stored_dtype(weight)] for weight, count in counts)


def _stored_dtype(weight: Mapping[str, Any]) -> str:
    quantization = weight.get("quantization")
    return str(quantization["dtype"] if quantization else weight["dtype"])


def _sizes(shape: Iterable[Any]) -> list[int]:
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes):
        raise ValueError("a weight has a negative size")
    return sizes


def _read_json(path: Path, title: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_MODEL_JSON_BYTES:
            raise ModelLoadError(f"{title} is larger than {MAX_MODEL_JSON_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{title} cannot be read: {error.strerror or error}") from error
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return document


def _checked_shards(folder: Path, group: _Group, title: str) -> list[Path]:
    shards = [_checked_shard(folder, name, title) for name in group.paths]
    found = sum(path.stat().st_size for path in shards)
    if group.stored_bytes is not None and found != group.stored_bytes:
        names = ", ".join(map(str, group.paths[:3])) + (" …" if len(group.paths) > 3 else "")
        raise ModelLoadError(
            f"{title}: the weights in {names} have {found} bytes and must have {group.stored_bytes}; "
            "copy the files again"
        )
    return shards


def _is_text(name: str) -> bool:
    """Return whether a name can be written at all: JSON may hold halves of letters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _checked_shard(folder: Path, name: Any, title: str) -> Path:
    """The file that a weights manifest names.

    Raises:
        ModelLoadError: it leads out of the folder, or does not exist.
    """
    inside = isinstance(name, str) and name != "" and not any(mark in name for mark in ("\0", "\\", "://"))
    if not inside or name.startswith("/") or ".." in name.split("/") or not _is_text(name):
        raise ModelLoadError(f"{title} names the weights file {name!r:.100}, which is not inside the model's folder")
    path = Path(os.path.realpath(folder / name))
    if not path.is_relative_to(os.path.realpath(folder)):
        raise ModelLoadError(
            f"{title}: the weights file {name:.100} is a link that leaves the model's folder; copy it there"
        )
    if not os.path.isfile(path):  # false, too, for a longer name than files have
        raise ModelLoadError(f"{title}: the weights file {name:.100} is missing")
    return path
