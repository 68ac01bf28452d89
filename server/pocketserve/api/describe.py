"""A loaded model's metadata: tensors, what runs it, and what its file says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pocketserve.api.model_card import DEFAULT_PORT, card
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.repository.scan import ModelEntry
from pocketserve.runtimes.base import Session
from pocketserve.tensors import spec_metadata

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel
    from pocketserve.runtimes.metadata import TensorMetadata


def describe_model(
    entry: ModelEntry, running: ModelHandle, port: int = DEFAULT_PORT, local: str = ""
) -> dict[str, Any]:
    """Return a model's metadata as ``GET /v2/models/NAME`` answers it: the protocol's own keys come first.

    Args:
        port: where the server listens for HTTP, for the card's examples.
        local: for a model that no server serves: how ``predict --local`` names it.
    """
    model = running.model
    version = model.version
    facts = {
        "version": version.name,
        "default_version": entry.default_version,
        "description": entry.manifest.description,
        "license": entry.manifest.license,
        "task": model.task.name,
        "labels": len(getattr(model.task, "labels", ())),
        "runtime": model.runtime,
        "device": device_of(model.sessions),
        "threads": model.threads,
        "file": version.path.name,
        "file_bytes": model.file_bytes,
        "memory_bytes": model.memory_bytes,
        "signatures": ",".join(name for name in model.entry_points if name is not None),
        **{
            f"evaluation_{key}": value
            for key, value in version.evaluation.items()
            if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**63)
        },
    }
    description: dict[str, Any] = {
        "name": entry.name,
        "versions": list(entry.versions),
        "platform": model.platform,
        "inputs": [spec_metadata(spec) for spec in model.inputs.specs],
        "outputs": [spec_metadata(spec) for spec in model.shown_outputs.specs],
        "parameters": {key: value for key, value in facts.items() if value},
        "card": card(model, port, local),
    }
    metadata = _file_metadata(model)
    if problem := getattr(model.task, "problem", ""):
        metadata = {**metadata, "problem": problem}
    return description | ({"metadata": metadata} if metadata else {})


def device_of(sessions: Sequence[Session]) -> str:
    """Return what really runs a loaded model; empty when it was closed meanwhile."""
    return "; ".join(dict.fromkeys(session.device for session in sessions))


def _file_metadata(model: LoadedModel) -> dict[str, Any]:
    read = model.version.format.metadata
    if read is None:
        return {}
    from pocketserve.formats import DamagedFileError

    try:
        metadata = read(model.source.path)
    except DamagedFileError as error:
        return {"problem": str(error)}
    if metadata is None:
        return {}
    texts = {key: getattr(metadata, key) for key in ("name", "description", "version", "author", "license")}
    tensors = {
        "inputs": [_tensor(tensor) for tensor in metadata.inputs],
        "outputs": [_tensor(tensor) for tensor in metadata.outputs],
    }
    return {key: value for key, value in {**texts, **tensors}.items() if value}


def _tensor(tensor: TensorMetadata) -> dict[str, Any]:
    normalization = tensor.normalization
    facts: dict[str, Any] = {
        "name": tensor.name,
        "description": tensor.description,
        "content": tensor.content.kind if tensor.content is not None else "",
        "mean": list(normalization.mean) if normalization is not None else [],
        "std": list(normalization.std) if normalization is not None else [],
        "files": [file.name for file in tensor.associated_files],
    }
    return {key: value for key, value in facts.items() if value}
