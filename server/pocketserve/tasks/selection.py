"""Choose a model's task.

The order: the manifest's, ``task.py`` beside it, one that certainly fits, tensors.
"""

from __future__ import annotations

import logging

from pocketserve.task_registry import TASK_NAMES, task_named
from pocketserve.tasks import tensors
from pocketserve.tasks.base import Task
from pocketserve.tasks.foreign.registry import reject_unsupported_keys
from pocketserve.tasks.model_facts import MetadataError, ModelFacts

log = logging.getLogger(__name__)

OWN_INPUT = (tensors.TASK.name, "custom")
"""Tasks that read no configuration file of other tools."""


def select_task(facts: ModelFacts) -> Task:
    """Choose and set up a version's task.

    Raises:
        ModelLoadError: the manifest names a task that does not fit the model's tensors.
    """
    declared = facts.manifest.task
    if declared is None and facts.may_be_export:
        # late: few models are exports
        from pocketserve.tasks.foreign.exports.properties import unsupported_export

        reason = unsupported_export(facts)
        if reason:
            return tensors.create(facts, reason)
    name = declared or _first_fitting(facts)
    try:
        if name not in OWN_INPUT:
            reject_unsupported_keys(facts, name)
        task = task_named(name).create(facts)
    except MetadataError as error:
        if declared is not None:
            raise
        facts.assumed.clear()
        version = (facts.entry.name, facts.version.name)
        log.warning(
            "%s, version %r, is served as tensors, not as %s: %s", *version, name, error
        )
        return tensors.create(facts, str(error))
    if isinstance(task, tensors.Tensors) and declared is None:
        # late: imports tasks, which other models may not need
        from pocketserve.tasks.advice import advice_of

        task.advice = advice_of(facts, task.labels)
    problem = getattr(task, "problem", "")
    if problem and name != tensors.TASK.name:
        _warn(facts, problem)
    for note in facts.notes:
        _warn(facts, note)
    return task


def _warn(facts: ModelFacts, text: str) -> None:
    """Log a sentence on a version."""
    log.warning("%s, version %r: %s", facts.entry.name, facts.version.name, text)


def _first_fitting(facts: ModelFacts) -> str:
    """Return the first task that certainly fits.

    The last one always does.
    """
    for name in TASK_NAMES:
        fits = task_named(name).fits
        if fits is None or not fits(facts):
            continue
        if name == tensors.TASK.name and facts.version.format.has_config:
            # late: imports tasks, which other models may not need
            from pocketserve.tasks.advice import certain_task

            return certain_task(facts) or name
        return name
    raise AssertionError("no task fits")
