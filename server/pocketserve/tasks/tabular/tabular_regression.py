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
        entry: dict[str, Any] = {} if row is None else {"row": row}
        entry |= {"name": self.name, "value": value}
        return {**entry, "unit": self.unit} if self.unit else entry


def create(facts: ModelFacts) -> TabularRegression:
    """Set up with the manifest's ``[features]`` and ``[target]``."""
    rows = rows_of(facts, NAME)
    texts = [spec.name for spec in facts.outputs if spec.datatype == "BYTES"]
    if texts or not facts.outputs:
        fault = f"output {texts[0]!r} has texts" if texts else "the model has no output"
        raise ModelLoadError(f"model.toml: task {NAME} answers numbers, but {fault}")
    return TabularRegression(rows, _targets(facts))


def _targets(facts: ModelFacts) -> Sequence[RegressionTarget]:
    """Return the targets by the manifest, else by the names of the outputs."""
    manifest = facts.manifest
    expected = [name for spec in facts.outputs for name in _names_of(spec)]
    if manifest.target_name:
        if manifest.target_names:
            raise ModelLoadError(
                "model.toml: target has name and names; use names for several targets"
            )
        names: Sequence[str] = (manifest.target_name,)
    else:
        names = manifest.target_names or expected
    if (
        manifest.target_names
        and all(_width(spec) > 0 for spec in facts.outputs)
        and len(names) != len(expected)
    ):
        raise ModelLoadError(
            f"model.toml: target.names has {len(names)}, the model answers {len(expected)} a row"
        )
    units = manifest.target_units or [manifest.target_unit] * len(names)
    if len(units) != len(names):
        raise ModelLoadError(
            f"model.toml: target.units has {len(units)}, target.names has {len(names)}"
        )
    return [
        RegressionTarget(name, unit) for name, unit in zip(names, units, strict=True)
    ]


def _names_of(spec: TensorSpec) -> list[str]:
    """Return the output's name, with the column's number if it has several."""
    width = _width(spec)
    if not 1 < width <= MAX_TARGETS:
        return [spec.name]
    return [f"{spec.name}[{column}]" for column in range(width)]


def _width(spec: TensorSpec) -> int:
    """Return an output's number of columns; -1 if the file doesn't say."""
    return 1 if len(spec.shape) < 2 else spec.shape[-1]


class TabularRegression(TableTask):
    """Names the numbers of each row, and their units."""

    name = NAME

    def __init__(self, rows: Rows, targets: Sequence[RegressionTarget]) -> None:
        super().__init__(rows)
        self._targets = targets
        several = len(targets) > 1
        self.answer_text = (
            "numbers by row and target"
            if several
            else "one number a row, with its name and unit"
        )

    def structure(self) -> dict[str, Any]:
        targets = [
            {"name": target.name, "unit": target.unit} for target in self._targets
        ]
        target = targets[0] if len(targets) == 1 else {"name": "", "unit": ""}
        return {
            **super().structure(),
            "target": target,
            **({"targets": targets} if len(targets) > 1 else {}),
        }

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"row", "name", "value", "unit"}`` per row and target.

        The row's number is there if there are several rows. ``top_k`` and ``threshold`` do not apply.
        """
        rows = context
        outputs = list(runs[0].values())
        if not rows or any(output.size % rows for output in outputs):
            values = np.concatenate([output.reshape(-1) for output in outputs])
            return [self._targets[0].entry(None, float(value)) for value in values]
        table = np.concatenate([_as_rows(output, rows) for output in outputs], axis=1)
        targets = self._targets_of(table.shape[1])
        answer: Answer = []
        for row, values in enumerate(table.tolist()):
            number = row if rows > 1 else None
            answer += [
                target.entry(number, value)
                for target, value in zip(targets, values, strict=True)
            ]
        return answer

    def _targets_of(self, count: int) -> Sequence[RegressionTarget]:
        """Return the targets for a run's number of columns."""
        if len(self._targets) == count:
            return self._targets
        first = self._targets[0]
        return [
            RegressionTarget(f"{first.name}[{number}]", first.unit)
            for number in range(count)
        ]


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
