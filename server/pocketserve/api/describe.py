"""A loaded model's metadata, and a card with sample requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pocketserve.engine.interface import fingerprint_of
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.formats import DamagedFileError
from pocketserve.repository.scan import ModelEntry
from pocketserve.runtimes.base import Session
from pocketserve.runtimes.metadata import TensorMetadata
from pocketserve.tasks.base import Describer
from pocketserve.tasks.form import FormProvider
from pocketserve.tensors import spec_metadata
from pocketserve_wire.addresses import HTTP_PORT, LOOPBACK

SHOWN_LABELS = 5
PLAIN = {
    "input": "numbers: a JSON array, an object of arrays by input name, or a .npy file",
    "example": "input.json",
}

EXAMPLES = {
    "curl": """curl -H "Authorization: Bearer $(pocketserve token)" \\
  -T {file} {shell_url}""",
    "python": """from pathlib import Path
from pocketserve_client import Client

with Client() as client:
    print(client.predict({model}, Path({quoted_file}).read_bytes())["predictions"])""",
    "java": """try (PocketServe server = PocketServe.builder().transport(Transport.SOCKET).token(token).build()) {{
    Prediction answer = server.predict({model}, bytes, "application/octet-stream");  // of {file}
    System.out.println(answer.getJson().get("predictions"));
}}""",
}


def describe_model(
    entry: ModelEntry,
    running: ModelHandle,
    port: int = HTTP_PORT,
    local: str = "",
    note: str = "",
) -> dict[str, Any]:
    """Return the content of ``GET /v2/models/NAME``.

    The protocol's own keys come first.

    Args:
        port: where the server listens for HTTP, for the card's examples; 0 stands for the usual one.
        local: for a model that no server serves: how ``predict --local`` names it.
        note: why a change of its files is not served; empty where there is none.
    """
    model, version = running.model, running.model.version
    labels = list(getattr(model.task, "labels", ()))
    facts = {
        "note": note,
        "not_applied": "; ".join(entry.notes),
        "version": version.name,
        "default_version": entry.default_version,
        "description": entry.manifest.description,
        "license": entry.manifest.license,
        "task": model.task.name,
        "fingerprint": fingerprint_of(model),
        "labels": len(labels),
        "runtime": model.runtime,
        "device": device_of(model.sessions),
        "threads": model.threads,
        "file": version.path.name,
        "file_bytes": model.file_bytes,
        "memory_bytes": model.memory_bytes,
        "signatures": ",".join(name for name in model.entry_points if name is not None),
        **{
            f"{table}_{key}": value
            for table, values in (
                ("evaluation", version.evaluation),
                ("provenance", _provenance(entry, version.name)),
            )
            for key, value in values.items()
            if isinstance(value, str | float)
            or (isinstance(value, int) and abs(value) < 2**63)
        },
    }
    description: dict[str, Any] = {
        "name": entry.name,
        "versions": [
            name
            for name in entry.versions
            if name not in entry.withheld or name == entry.default_version
        ],
        "platform": model.platform,
        "inputs": [spec_metadata(spec) for spec in model.inputs.specs],
        "outputs": [spec_metadata(spec) for spec in model.shown_outputs.specs],
        "parameters": {key: value for key, value in facts.items() if value},
        "card": _card(model, labels, port, local),
    }
    metadata = _file_metadata(model)
    problems = [getattr(model.task, "problem", ""), *model.notes]
    if problem := "; ".join(filter(None, problems)):
        metadata = {**metadata, "problem": problem}
    if model.unknown_keys:
        metadata = {
            **metadata,
            "unknown_keys": {
                name: list(keys) for name, keys in model.unknown_keys.items()
            },
        }
    if model.assumed:
        metadata = {**metadata, "assumed": list(model.assumed)}
    return description | ({"metadata": metadata} if metadata else {})


def _card(
    model: LoadedModel, labels: Sequence[str], port: int, local: str
) -> dict[str, Any]:
    task = model.task
    texts: Mapping[str, str] = task.describe() if isinstance(task, Describer) else PLAIN
    file = example_file(model)
    url = f"http://{LOOPBACK}:{port or HTTP_PORT}/predictions/{quote(model.entry.name, safe='')}"
    parts = {
        "file": file,
        "quoted_file": json.dumps(file),
        "model": json.dumps(model.entry.name),
        "shell_url": f"'{url}'" if "%" in url else url,
    }
    examples = {language: text.format(**parts) for language, text in EXAMPLES.items()}
    facts: dict[str, Any] = {
        "task": task.name,
        **{
            key: texts[key]
            for key in ("input", "preprocessing", "answer")
            if key in texts
        },
        "advice": getattr(task, "advice", ""),
        "labels": len(labels),
        "first_labels": labels[:SHOWN_LABELS],
        "examples": {"shell": f"pocketserve predict --local {local} {file}"}
        if local
        else examples,
    }
    form = task.form().facts() if isinstance(task, FormProvider) else {}
    return {key: value for key, value in facts.items() if value} | form


def example_file(model: LoadedModel) -> str:
    """Return a sample name for a file that the model takes."""
    texts: Mapping[str, str] = (
        model.task.describe() if isinstance(model.task, Describer) else PLAIN
    )
    return texts.get("example", PLAIN["example"])


def _provenance(entry: ModelEntry, version: str) -> Mapping[str, Any]:
    options = entry.manifest.versions.get(version)
    return {} if options is None else options.provenance


def device_of(sessions: Sequence[Session]) -> str:
    """Return the device that runs a loaded model; empty if closed."""
    return "; ".join(dict.fromkeys(session.device for session in sessions))


def _file_metadata(model: LoadedModel) -> dict[str, Any]:
    read = model.version.format.metadata
    try:
        metadata = read(model.source.path) if read is not None else None
    except DamagedFileError as error:
        return {"problem": str(error)}
    if metadata is None:
        return {}
    texts = {
        key: getattr(metadata, key)
        for key in ("name", "description", "version", "author", "license")
    }
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
