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

    ``calls`` are those of the task, each with the members of its entries; ``about`` is what people want to read in a
    comment. Neither counts for the fingerprint: a newer server may say more of the same model.
    """
    task = model.task
    texts: Mapping[str, str] = task.describe() if isinstance(task, Describer) else {}
    about = {
        "description": model.entry.manifest.description,
        "license": model.entry.manifest.license,
        **{
            key: texts[key]
            for key in ("input", "preprocessing", "answer")
            if key in texts
        },
    }
    return {
        "name": model.entry.name,
        "version": model.version.name,
        "fingerprint": fingerprint_of(model),
        **_contract(model),
        "calls": [
            {
                "verb": call.verb,
                "takes": call.takes,
                "entry": call.entry,
                "fields": _fields(call.fields),
            }
            for call in task_named(task.name).calls
        ],
        "about": {key: value for key, value in about.items() if value},
    }


def fingerprint_of(model: LoadedModel) -> str:
    """Return a hash of everything that clients depend on.

    Neither the model's name nor its version counts: two versions that are asked alike have the same one.
    """
    text = json.dumps(
        _contract(model), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:FINGERPRINT_DIGITS]


def _contract(model: LoadedModel) -> dict[str, Any]:
    # Ignore shapes learned from runs: they are unknown before the first run.
    task, optional = model.task, model.optional_inputs
    facts = task.structure() if isinstance(task, Structured) else {}
    return {
        "task": task.name,
        "inputs": [
            _tensor(spec, optional=spec.name in optional) for spec in model.inputs.specs
        ],
        "outputs": [_tensor(spec) for spec in model.outputs.specs],
        **{key: value for key, value in facts.items() if value},
    }


def _tensor(spec: TensorSpec, *, optional: bool = False) -> dict[str, Any]:
    entry = dict(spec_metadata(spec))
    return (
        {**entry, "parameters": {**entry.get("parameters", {}), "optional": True}}
        if optional
        else entry
    )


def _fields(fields: Sequence[AnswerField]) -> list[dict[str, Any]]:
    return [
        {
            key: value
            for key, value in {
                **field._asdict(),
                "fields": _fields(field.fields),
            }.items()
            if value
        }
        for field in fields
    ]
