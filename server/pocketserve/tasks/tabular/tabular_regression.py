"""Rows of named numbers in, one number per row out."""

from __future__ import annotations

from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import Answer, AnswerOptions, Runs, TaskDefinition
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.tabular.tables import Rows, TableTask, rows_of

NAME = "tabular-regression"


def create(facts: ModelFacts) -> TabularRegression:
    """Set up with the manifest's ``[features]`` and ``[target]``."""
    manifest, outputs = facts.manifest, facts.outputs
    rows = rows_of(facts, NAME)
    if len(outputs) != 1:
        raise ModelLoadError(f"model.toml: task {NAME} needs one output, the model has {len(outputs)}")
    return TabularRegression(rows, manifest.target_name or outputs[0].name, manifest.target_unit)


class TabularRegression(TableTask):
    """Names the number of each row, and its unit."""

    name = NAME
    answer_text = "one number a row, with its name and unit"

    def __init__(self, rows: Rows, target: str, unit: str) -> None:
        super().__init__(rows)
        self._target = target
        self._unit = {"unit": unit} if unit else {}

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"name", "value", "unit"}`` per row; ``top_k`` and ``threshold`` do not apply."""
        (output,) = runs[0].values()
        return [{"name": self._target, "value": float(value), **self._unit} for value in output.reshape(-1)]


TASK = TaskDefinition(NAME, None, create)
