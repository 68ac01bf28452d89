"""The tasks. Each is one module with

- ``fits(facts)``: whether the model, without a word from its owner, has certainly this task;
- ``create(facts)``: the task set up for it, or ``ModelLoadError`` with what does not fit.

To add one: write the module, add it here, and its name to ``TASKS`` in :mod:`pocketserve.repository.sections`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from pocketserve.tasks.base import Task
from pocketserve.tasks.facts import ModelFacts


class TaskModule(Protocol):
    """What a task's module offers."""

    def fits(self, facts: ModelFacts) -> bool:
        """Whether a model without ``task`` in its manifest has this task. Anything less than certain is False."""
        ...

    def create(self, facts: ModelFacts) -> Task:
        """Set the task up.

        Raises:
            ModelLoadError: the model's tensors, or the manifest's keys, do not fit the task.
        """
        ...


MODULES: Mapping[str, str] = {
    "object-detection": "object_detection",
    "pose-estimation": "pose_estimation",
    "image-segmentation": "image_segmentation",
    "image-classification": "image_classification",
    "tabular-regression": "tabular_regression",
    "audio-classification": "audio_classification",
    "voice-activity": "voice_activity",
    "question-answering": "question_answering",
    "text-classification": "text_classification",
    "text-embedding": "text_embedding",
    "tabular-classification": "tabular_classification",
    "recommendation": "recommendation",
}
"""Module by the task's name, in the order in which they are asked whether a model fits."""


def task_module(name: str) -> TaskModule:
    """The module of a task; imported on first use, so that unused tasks cost nothing."""
    return cast(TaskModule, import_module(f"pocketserve.tasks.{MODULES[name]}"))
