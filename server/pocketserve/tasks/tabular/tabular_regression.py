"""Rows of named numbers in, one number per row out."""

from __future__ import annotations

from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import Answer, AnswerOptions, Runs, TaskDefinition
from pocketserve.tasks.entries import AnswerField, TaskCall
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

    def structure(self) -> dict[str, Any]:
        return {**super().structure(), "target": {"name": self._target, "unit": self._unit.get("unit", "")}}

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"name", "value", "unit"}`` per row; ``top_k`` and ``threshold`` do not apply."""
        (output,) = runs[0].values()
        return [{"name": self._target, "value": float(value), **self._unit} for value in output.reshape(-1)]


FIELDS = (
    AnswerField("value", "real", "the predicted value"),
    AnswerField("name", "text", "what it is"),
    AnswerField("unit", "text", "its unit; empty where the model names none"),
)
CALL = TaskCall("predict", "rows", "Value", FIELDS)
TASK = TaskDefinition(NAME, None, create, calls=(CALL,))
