"""Files that export tools write beside a model, read as if they were the model file's own properties."""

from __future__ import annotations

from pocketserve.tasks.foreign.exports.lobe import lobe_labels
from pocketserve.tasks.foreign.exports.teachable_machine import project_of
from pocketserve.tasks.foreign.exports.ultralytics import (
    TASKS,
    is_ultralytics_metadata,
    metadata_beside,
)
from pocketserve.tasks.model_facts import ModelFacts


def properties_beside(facts: ModelFacts) -> dict[str, str]:
    """Return texts about a model by name, from files beside it.

    Class names are in Python's notation, as Ultralytics writes them into a model file.
    """
    ultralytics = metadata_beside(facts)
    if ultralytics:
        return ultralytics
    project = project_of(facts)
    labels = project.labels if project is not None else lobe_labels(facts)
    return {"names": repr(dict(enumerate(labels)))} if labels else {}


def unsupported_export(facts: ModelFacts) -> str:
    """Return why an export of a known tool answers as tensors; empty for all others."""
    project = project_of(facts)
    if project is not None and project.kind == "pose":
        return (
            "it is a pose project of Teachable Machine, which is not supported: its input is made by PoseNet, "
            "which is not part of the export"
        )
    if project is not None and project.kind == "sound":
        return (
            "it is the TensorFlow.js export of a sound project of Teachable Machine, which is not supported: a "
            "browser computes its spectrogram; download its TensorFlow Lite export instead"
        )
    task = facts.properties.get("task", "")
    if is_ultralytics_metadata(facts.properties) and task not in TASKS:
        return f"it was exported by Ultralytics for the task {task:.40}, which is not supported"
    return ""
