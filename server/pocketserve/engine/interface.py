"""A model's interface for generated clients, with a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.task_registry import task_named
from pocketserve.tasks.base import Describer
from pocketserve.tasks.entries import AnswerField, Structured
from pocketserve.tensors import TensorSpec, spec_metadata

FINGERPRINT_DIGITS = 32  # hexadecimal ones: 128 bits


def describe_interface(model: LoadedModel) -> dict[str, Any]:
    """Return the content of ``GET /v2/models/NAME/interface``.

    ``calls`` are the task's, each with the members of its entries; ``about`` has texts
    for comments. Neither is part of the fingerprint: a newer server may say more about
    the same model.
    """
    task = model.task
    calls = []
    for call in task_named(task.name).calls:
        calls.append(
            {
                "verb": call.verb,
                "takes": call.takes,
                "entry": call.entry,
                "fields": _fields(call.fields),
            }
        )
    return {
        "name": model.entry.name,
        "version": model.version.name,
        "fingerprint": fingerprint_of(model),
        **_contract(model),
        "calls": calls,
        "about": _about(model),
    }


def _about(model: LoadedModel) -> dict[str, str]:
    """Return texts for comments in generated code."""
    task, manifest = model.task, model.entry.manifest
    texts: Mapping[str, str] = task.describe() if isinstance(task, Describer) else {}
    about = {"description": manifest.description, "license": manifest.license}
    for key in ("input", "preprocessing", "answer"):
        about[key] = texts.get(key, "")
    return _without_empty(about)


def fingerprint_of(model: LoadedModel) -> str:
    """Return a hash of everything that clients depend on.

    The model's name and version are not part of it: versions with the same interface
    have the same hash.
    """
    text = json.dumps(
        _contract(model), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:FINGERPRINT_DIGITS]


def _contract(model: LoadedModel) -> dict[str, Any]:
    # Ignore shapes learned from runs: they are unknown before the first run.
    task, optional = model.task, model.optional_inputs
    inputs = []
    for spec in model.inputs.specs:
        inputs.append(_tensor(spec, optional=spec.name in optional))
    contract = {
        "task": task.name,
        "inputs": inputs,
        "outputs": [_tensor(spec) for spec in model.outputs.specs],
    }
    if isinstance(task, Structured):
        contract |= _without_empty(task.structure())
    return contract


def _tensor(spec: TensorSpec, *, optional: bool = False) -> dict[str, Any]:
    entry = dict(spec_metadata(spec))
    if optional:
        entry["parameters"] = {**entry.get("parameters", {}), "optional": True}
    return entry


def _fields(fields: Sequence[AnswerField]) -> list[dict[str, Any]]:
    entries = []
    for field in fields:
        entry = {**field._asdict(), "fields": _fields(field.fields)}
        entries.append(_without_empty(entry))
    return entries


def _without_empty(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value}
