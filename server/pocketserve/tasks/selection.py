"""Which task a model has: as its manifest says, else ``task.py`` beside it, else what is certain, else tensors."""

from __future__ import annotations

import logging

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import custom
from pocketserve.tasks.base import Task
from pocketserve.tasks.facts import MetadataError, ModelFacts
from pocketserve.tasks.labels import find_labels
from pocketserve.tasks.registry import MODULES, task_module
from pocketserve.tasks.tensors import Tensors

log = logging.getLogger(__name__)


def select_task(facts: ModelFacts) -> Task:
    """Choose and set up a version's task.

    Raises:
        ModelLoadError: the manifest names a task that does not fit the model's tensors.
    """
    name = facts.manifest.task
    if name == "custom" or (name is None and custom.fits(facts)):
        return custom.create(facts)
    if name is None:
        name = next((name for name in MODULES if task_module(name).fits(facts)), "tensors")
    if name == "tensors":
        return _tensors(facts)
    where = (facts.entry.name, facts.version.name)
    try:
        task: Task = task_module(name).create(facts)
    except MetadataError as error:
        if facts.manifest.task is not None:
            raise
        log.warning("%s, version %r, is served as tensors, not as %s: %s", *where, name, error)
        return _tensors(facts, str(error))
    if problem := getattr(task, "problem", ""):
        log.warning("%s, version %r: %s", *where, problem)
    return task


def _tensors(facts: ModelFacts, problem: str = "") -> Tensors:
    try:
        labels = find_labels(facts).names
    except ModelLoadError:
        if facts.manifest.labels is not None:
            raise
        labels = ()  # what lies beside the model may be meant for something else
    return Tensors(facts.inputs, facts.manifest.state.feedback, labels, problem)
