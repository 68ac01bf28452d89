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
from pocketserve.repository.samples import sample_names
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
    description: dict[str, Any] = {
        "name": entry.name,
        "versions": _offered_versions(entry),
        "platform": model.platform,
        "inputs": [spec_metadata(spec) for spec in model.inputs.specs],
        "outputs": [spec_metadata(spec) for spec in model.shown_outputs.specs],
        "parameters": _without_empty(facts),
        "card": _card(model, labels, port, local),
    }
    return description | _metadata(model)


def _offered_versions(entry: ModelEntry) -> list[str]:
    versions = []
    for name in entry.versions:
        if name not in entry.withheld or name == entry.default_version:
            versions.append(name)
    return versions


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
    """Return the file's metadata and problems of its files, if any."""
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
    return {"metadata": metadata} if metadata else {}


def _card(
    model: LoadedModel, labels: Sequence[str], port: int, local: str
) -> dict[str, Any]:
    task = model.task
    texts = _texts(model)
    facts: dict[str, Any] = {"task": task.name}
    for key in ("input", "preprocessing", "answer"):
        facts[key] = texts.get(key)
    facts |= {
        "advice": getattr(task, "advice", ""),
        "labels": len(labels),
        "first_labels": labels[:SHOWN_LABELS],
        "examples": _examples(model, port, local),
    }
    card = _without_empty(facts)
    samples = sample_names(model.entry)
    if samples:
        card["samples"] = samples
    if isinstance(task, FormProvider):
        card |= task.form().facts()
    return card


def _examples(model: LoadedModel, port: int, local: str) -> dict[str, str]:
    """Return sample requests by language."""
    file = example_file(model)
    if local:
        return {"shell": f"pocketserve predict --local {local} {file}"}
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
    return _texts(model).get("example", PLAIN["example"])


def _texts(model: LoadedModel) -> Mapping[str, str]:
    """Return the task's description of its input and answer."""
    if isinstance(model.task, Describer):
        return model.task.describe()
    return PLAIN


def _provenance(entry: ModelEntry, version: str) -> Mapping[str, Any]:
    options = entry.manifest.versions.get(version)
    return {} if options is None else options.provenance


def device_of(sessions: Sequence[Session]) -> str:
    """Return the device that runs a loaded model; empty if closed."""
    return "; ".join(dict.fromkeys(session.device for session in sessions))


def _file_metadata(model: LoadedModel) -> dict[str, Any]:
    read = model.version.format.metadata
    if read is None:
        return {}
    try:
        metadata = read(model.source.path)
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
    facts: dict[str, Any] = {"name": tensor.name, "description": tensor.description}
    if tensor.content is not None:
        facts["content"] = tensor.content.kind
    if tensor.normalization is not None:
        facts["mean"] = list(tensor.normalization.mean)
        facts["std"] = list(tensor.normalization.std)
    facts["files"] = [file.name for file in tensor.associated_files]
    return _without_empty(facts)
