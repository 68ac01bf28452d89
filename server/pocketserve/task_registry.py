"""The tasks that come with the server, by module.

A task's module has a ``TASK``, and the task is named like its module, with dashes. Importing this module imports none.
To add a task: write its module and add its line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pocketserve.tasks.base import TaskDefinition

TASK_MODULES = (
    "pocketserve.tasks.custom",
    "pocketserve.tasks.vision.object_detection",
    "pocketserve.tasks.vision.pose_estimation",
    "pocketserve.tasks.vision.image_segmentation",
    "pocketserve.tasks.vision.image_classification",
    "pocketserve.tasks.tabular.tabular_regression",
    "pocketserve.tasks.speech.speech_to_text",
    "pocketserve.tasks.audio.audio_classification",
    "pocketserve.tasks.audio.voice_activity",
    "pocketserve.tasks.text.text_generation",
    "pocketserve.tasks.text.question_answering",
    "pocketserve.tasks.text.text_classification",
    "pocketserve.tasks.text.text_embedding",
    "pocketserve.tasks.tabular.tabular_classification",
    "pocketserve.tasks.tabular.recommendation",
    "pocketserve.tasks.tensors",
)
"""In the order in which they are asked whether a model without ``task`` in its manifest fits."""

_MODULES = {
    module.rpartition(".")[2].replace("_", "-"): module for module in TASK_MODULES
}
TASK_NAMES = tuple(_MODULES)  # values of ``task`` in a manifest


def task_named(name: str) -> TaskDefinition:
    """Import and return a task of ``TASK_NAMES``."""
    task: TaskDefinition = import_module(_MODULES[name]).TASK
    return task


def parameter_names() -> tuple[str, ...]:
    """Import and return the request parameters that tasks read."""
    names: tuple[str, ...] = import_module("pocketserve.tasks.parameters").NAMES
    return names
