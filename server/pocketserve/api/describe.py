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
        port: the server's HTTP port for the examples; 0 for the default.
        local: the name for ``predict --local``, if no server serves the model.
        note: why changed files are not served yet; empty if nothing changed.
    """
    model = running.model
    labels = list(getattr(model.task, "labels", ()))
    facts = {"note": note, **_facts(entry, running, labels)}
    versions = []
    for name in entry.versions:
        if name not in entry.withheld or name == entry.default_version:
            versions.append(name)
    description: dict[str, Any] = {
        "name": entry.name,
        "versions": versions,
        "platform": model.platform,
        "inputs": [spec_metadata(spec) for spec in model.inputs.specs],
        "outputs": [spec_metadata(spec) for spec in model.shown_outputs.specs],
        "parameters": _without_empty(facts),
        "card": _card(model, labels, port, local),
    }
    metadata = _metadata(model)
    if metadata:
        description["metadata"] = metadata
    return description


def _without_empty(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value}


def _facts(
    entry: ModelEntry, running: ModelHandle, labels: Sequence[str]
) -> dict[str, Any]:
    """Return the facts about a model and version; some may be empty."""
    model = running.model
    version = model.version
    signatures = [name for name in model.entry_points if name is not None]
    facts = {
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
        "signatures": ",".join(signatures),
    }
    facts |= _scalars("evaluation", version.evaluation)
    facts |= _scalars("provenance", _provenance(entry, version.name))
    return facts


def _scalars(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a manifest's table that the protocol can send."""
    scalars = {}
    for key, value in values.items():
        is_integer = isinstance(value, int) and abs(value) < 2**63
        if is_integer or isinstance(value, str | float):
            scalars[f"{table}_{key}"] = value
    return scalars


def _metadata(model: LoadedModel) -> dict[str, Any]:
    """Return the file's metadata, and problems with the model's files."""
    metadata = _file_metadata(model)
    problems = [getattr(model.task, "problem", ""), *model.notes]
    problem = "; ".join(filter(None, problems))
    if problem:
        metadata["problem"] = problem
    if model.unknown_keys:
        unknown_keys = {}
        for name, keys in model.unknown_keys.items():
            unknown_keys[name] = list(keys)
        metadata["unknown_keys"] = unknown_keys
    if model.assumed:
        metadata["assumed"] = list(model.assumed)
    return metadata


def _card(
    model: LoadedModel, labels: Sequence[str], port: int, local: str
) -> dict[str, Any]:
    task = model.task
    texts: Mapping[str, str] = task.describe() if isinstance(task, Describer) else PLAIN
    facts: dict[str, Any] = {"task": task.name}
    for key in ("input", "preprocessing", "answer"):
        facts[key] = texts.get(key)
    facts["advice"] = getattr(task, "advice", "")
    facts["labels"] = len(labels)
    facts["first_labels"] = labels[:SHOWN_LABELS]
    if local:
        command = f"pocketserve predict --local {local} {example_file(model)}"
        facts["examples"] = {"shell": command}
    else:
        facts["examples"] = _examples(model, port)
    card = _without_empty(facts)
    if isinstance(task, FormProvider):
        card |= task.form().facts()
    return card


def _examples(model: LoadedModel, port: int) -> dict[str, str]:
    """Return sample requests by language."""
    file = example_file(model)
    path = quote(model.entry.name, safe="")
    url = f"http://{LOOPBACK}:{port or HTTP_PORT}/predictions/{path}"
    parts = {
        "file": file,
        "quoted_file": json.dumps(file),
        "model": json.dumps(model.entry.name),
        "shell_url": f"'{url}'" if "%" in url else url,
    }
    return {language: text.format(**parts) for language, text in EXAMPLES.items()}


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
    facts: dict[str, Any] = {}
    for key in ("name", "description", "version", "author", "license"):
        facts[key] = getattr(metadata, key)
    facts["inputs"] = [_tensor(tensor) for tensor in metadata.inputs]
    facts["outputs"] = [_tensor(tensor) for tensor in metadata.outputs]
    return _without_empty(facts)


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
    return _without_empty(facts)
