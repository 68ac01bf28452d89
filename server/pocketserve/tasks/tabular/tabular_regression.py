"""Rows of named numbers in, one number per row out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition, single_run
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.tabular.tables import Rows, rows_of

NAME = "tabular-regression"


def fits(facts: ModelFacts) -> bool:
    """Never: what the numbers mean is for the owner to say."""
    return False


def create(facts: ModelFacts) -> TabularRegression:
    """Set up with the manifest's ``[features]`` and ``[target]``.

    Raises:
        ModelLoadError: the model does not take rows, or has several outputs.
    """
    manifest, outputs = facts.manifest, facts.outputs
    rows = rows_of(facts, NAME)
    if len(outputs) != 1:
        raise ModelLoadError(f"model.toml: task {NAME} needs one output, the model has {len(outputs)}")
    return TabularRegression(rows, manifest.target_name or outputs[0].name, manifest.target_unit)


class TabularRegression:
    """Takes rows as :class:`~pocketserve.tasks.tabular.tables.Rows` does.

    Args:
        target: what the number means, and its unit.
    """

    name = NAME

    def __init__(self, rows: Rows, target: str, unit: str) -> None:
        self._rows = rows
        self._target = target
        self._unit = unit

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        return single_run(self._rows.read(body))

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """One entry per row: ``{"name", "value", "unit"}``; ``top_k`` and ``threshold`` do not apply."""
        (output,) = runs[0].values()
        unit = {"unit": self._unit} if self._unit else {}
        return [{"name": self._target, "value": float(value), **unit} for value in output.reshape(-1)]

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": self._rows.describe(),
            "preprocessing": "none",
            "answer": "one number a row, with its name and unit",
            "content_type": "application/json",
            "example": "row.json",
        }


TASK = TaskDefinition(NAME, fits, create)
