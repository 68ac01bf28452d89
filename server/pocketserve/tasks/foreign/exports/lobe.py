"""Exports of Lobe: ``signature.json`` beside the model names its classes and its outputs.

Source: lobe/lobe-python, src/lobe/signature.py and src/lobe/image_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key
from pocketserve.tasks.model_facts import ModelFacts

FILE = "signature.json"
_SOURCE = "lobe/lobe-python, src/lobe/signature.py"


def _is_signature(content: Mapping[str, Any]) -> bool:
    """Return whether a ``signature.json`` is Lobe's."""
    classes = content.get("classes")
    return (
        isinstance(classes, dict)
        and "Label" in classes
        and "export_model_version" in content
    )


TABLE = ForeignFile(
    FILE,
    (
        Key("classes.Label", Effect.APPLIED, _SOURCE),
        Key("inputs", Effect.HARMLESS, f"{_SOURCE}; the model file has its inputs"),
        Key("outputs", Effect.HARMLESS, f"{_SOURCE}; the model file has its outputs"),
        Key("export_model_version", Effect.UNSUPPORTED, _SOURCE, neutral=(1,)),
        Key("format", Effect.HARMLESS, _SOURCE),
        Key("filename", Effect.HARMLESS, _SOURCE),
        Key("tags", Effect.HARMLESS, _SOURCE),
        Key("doc_id", Effect.HARMLESS, _SOURCE),
        Key("doc_name", Effect.HARMLESS, _SOURCE),
        Key("doc_version", Effect.HARMLESS, _SOURCE),
        Key("legacy_properties", Effect.HARMLESS, _SOURCE),
    ),
    belongs=_is_signature,
)


def lobe_labels(facts: ModelFacts) -> tuple[str, ...] | None:
    """Return the class names of an export of Lobe; None for models of other tools."""
    try:
        content = facts.json_beside(FILE)
    except ModelLoadError:
        return None
    if not _is_signature(content):
        return None
    labels = content["classes"]["Label"]
    if not isinstance(labels, list) or not all(
        isinstance(label, str) for label in labels
    ):
        return ()
    return tuple(labels)
