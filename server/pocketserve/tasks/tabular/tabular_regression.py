"""Predict numbers from rows of named values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import Answer, AnswerOptions, Runs, TaskDefinition
from pocketserve.tasks.entries import AnswerField, TaskCall
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.tabular.tables import Rows, TableTask, rows_of
from pocketserve.tensors import Array, TensorSpec

NAME = "tabular-regression"
MAX_TARGETS = 10_000


class RegressionTarget(NamedTuple):
    """A number that the model predicts for each row."""

    name: str
    unit: str = ""

    def entry(self, row: int | None, value: float) -> dict[str, Any]:
        """Return a row's entry; None is the only row."""
        entry: dict[str, Any] = {}
        if row is not None:
            entry["row"] = row
        entry["name"] = self.name
        entry["value"] = value
        if self.unit:
            entry["unit"] = self.unit
        return entry


def create(facts: ModelFacts) -> TabularRegression:
    """Set up with the manifest's ``[features]`` and ``[target]``."""
    rows = rows_of(facts, NAME)
    fault = ""
    if not facts.outputs:
        fault = "the model has no output"
    for spec in facts.outputs:
        if spec.datatype == "BYTES":
            fault = f"output {spec.name!r} has texts"
            break
    if fault:
        raise ModelLoadError(f"model.toml: task {NAME} answers numbers, but {fault}")
    return TabularRegression(rows, _targets(facts))


def _targets(facts: ModelFacts) -> Sequence[RegressionTarget]:
    """Return the targets by manifest or output names."""
    manifest = facts.manifest
    names = _target_names(facts)
    units = manifest.target_units or [manifest.target_unit] * len(names)
    if len(units) != len(names):
        raise ModelLoadError(
            f"model.toml: target.units has {len(units)}, target.names has {len(names)}"
        )
    return list(map(RegressionTarget, names, units))


def _target_names(facts: ModelFacts) -> Sequence[str]:
    manifest = facts.manifest
    if manifest.target_name:
        if manifest.target_names:
            raise ModelLoadError(
                "model.toml: target has name and names; use names for several targets"
            )
        return (manifest.target_name,)
    expected = []
    for spec in facts.outputs:
        expected += _names_of(spec)
    names = manifest.target_names
    if not names:
        return expected
    is_known = all(_width(spec) > 0 for spec in facts.outputs)
    if is_known and len(names) != len(expected):
        raise ModelLoadError(
            f"model.toml: target.names has {len(names)}, the model answers "
            f"{len(expected)} a row"
        )
    return names


def _names_of(spec: TensorSpec) -> list[str]:
    """Return the output's name, with the column's number if it has several."""
    width = _width(spec)
    if not 1 < width <= MAX_TARGETS:
        return [spec.name]
    return [f"{spec.name}[{column}]" for column in range(width)]


def _width(spec: TensorSpec) -> int:
    """Return an output's number of columns; -1 if the file doesn't say."""
    if len(spec.shape) < 2:
        return 1
    return spec.shape[-1]


class TabularRegression(TableTask):
    """Names the numbers of each row, and their units."""

    name = NAME

    def __init__(self, rows: Rows, targets: Sequence[RegressionTarget]) -> None:
        super().__init__(rows)
        self._targets = targets
        self.answer_text = "one number a row, with its name and unit"
        if len(targets) > 1:
            self.answer_text = "numbers by row and target"

    def structure(self) -> dict[str, Any]:
        targets = []
        for target in self._targets:
            targets.append({"name": target.name, "unit": target.unit})
        structure = super().structure()
        if len(targets) == 1:
            return {**structure, "target": targets[0]}
        structure["target"] = {"name": "", "unit": ""}
        if targets:
            structure["targets"] = targets
        return structure

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"row", "name", "value", "unit"}`` per row and target.

        A row's number is omitted if it is the only row. ``top_k`` and ``threshold`` do
        not apply.
        """
        rows = context
        outputs = list(runs[0].values())
        if not rows or any(output.size % rows for output in outputs):
            return self._flat_answer(outputs)
        tables = [_as_rows(output, rows) for output in outputs]
        table = np.concatenate(tables, axis=1)
        targets = self._targets_of(table.shape[1])
        answer: Answer = []
        for row, values in enumerate(table.tolist()):
            number = None
            if rows > 1:
                number = row
            for target, value in zip(targets, values, strict=True):
                answer.append(target.entry(number, value))
        return answer

    def _flat_answer(self, outputs: Sequence[Array]) -> Answer:
        """Return an entry for each number, if they don't belong to rows."""
        values = np.concatenate([output.reshape(-1) for output in outputs])
        target = self._targets[0]
        return [target.entry(None, float(value)) for value in values]

    def _targets_of(self, count: int) -> Sequence[RegressionTarget]:
        """Return the targets for a run's number of columns."""
        if len(self._targets) == count:
            return self._targets
        first = self._targets[0]
        targets = []
        for number in range(count):
            targets.append(RegressionTarget(f"{first.name}[{number}]", first.unit))
        return targets


def _as_rows(output: Array, rows: int) -> Array:
    return output.reshape(rows, -1).astype(np.float64)


FIELDS = (
    AnswerField("value", "real", "the predicted value"),
    AnswerField("name", "text", "what it is"),
    AnswerField("unit", "text", "its unit; empty where the model names none"),
    AnswerField("row", "integer", "the number of the row, from 0"),
)
CALL = TaskCall("predict", "rows", "Value", FIELDS)
TASK = TaskDefinition(NAME, None, create, calls=(CALL,))
