"""Rows of named numbers in, one number per row out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, invalid_input, single_run
from pocketserve.tasks.facts import ModelFacts
from pocketserve.tensors import TensorSpec
from pocketserve_wire import strict_json


def fits(facts: ModelFacts) -> bool:
    """Never: what the numbers mean is for the owner to say."""
    return False


def create(facts: ModelFacts) -> TabularRegression:
    """Set up with the manifest's ``[features]`` and ``[target]``.

    Raises:
        ModelLoadError: the model is not one input of rows and one output.
    """
    manifest, inputs, outputs = facts.manifest, facts.inputs, facts.outputs
    if len(inputs) != 1 or len(outputs) != 1 or len(inputs[0].shape) != 2:
        raise ModelLoadError(
            "model.toml: task tabular-regression needs one input of shape [rows, features], one output"
        )
    width = inputs[0].shape[1]
    if manifest.feature_names and width not in (-1, len(manifest.feature_names)):
        raise ModelLoadError(f"model.toml: features.names has {len(manifest.feature_names)}, the model takes {width}")
    return TabularRegression(
        inputs[0], manifest.feature_names, manifest.target_name or outputs[0].name, manifest.target_unit
    )


class TabularRegression:
    """Takes a row ``[5.1, 3.5]``, rows, an object of features, or a list of such objects.

    Args:
        spec: the only input, of shape [rows, features].
        features: names in the model's order; empty where the manifest gives none.
        target: what the number means, and its unit.
    """

    name = "tabular-regression"

    def __init__(self, spec: TensorSpec, features: Sequence[str], target: str, unit: str) -> None:
        self._spec = spec
        self._features = features
        self._target = target
        self._unit = unit

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        if arrays.is_npy(body):
            return single_run({self._spec.name: arrays.fit_array(arrays.read_npy(body), self._spec)})
        if not arrays.looks_like_json(body):
            raise invalid_input("this model takes numbers: send a JSON array of features or an object by feature name")
        values = strict_json.loads(body)
        if isinstance(values, dict):
            values = [self._row(values, 0)]
        elif isinstance(values, list) and any(isinstance(row, dict) for row in values):
            values = [self._row(row, index) for index, row in enumerate(values)]
        elif isinstance(values, list):
            self._check_widths(values)
        return single_run({self._spec.name: arrays.fit_values(values, self._spec)})

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """One entry per row: ``{"name", "value", "unit"}``; ``top_k`` and ``threshold`` do not apply."""
        (output,) = runs[0].values()
        unit = {"unit": self._unit} if self._unit else {}
        return [{"name": self._target, "value": float(value), **unit} for value in output.reshape(-1)]

    def _check_widths(self, rows: list[Any]) -> None:
        """Rows of different lengths would shift into each other: the wire only compares the total count."""
        width = self._spec.shape[1]
        for index, row in enumerate(rows):
            if isinstance(row, list) and len(row) != width >= 0:
                raise invalid_input(f"row {index} has {len(row)} values; the model takes {width}")

    def _row(self, row: Any, index: int) -> list[Any]:
        if not isinstance(row, dict):
            raise invalid_input(f"row {index} is {strict_json.json_type(row)}; all rows must be objects of features")
        if not self._features:
            raise invalid_input("this model's features have no names; send an array of numbers")
        unknown = [name for name in row if name not in self._features]
        missing = [name for name in self._features if name not in row]
        if unknown or missing:
            fault = f"unknown feature {unknown[0]!r}" if unknown else f"feature {missing[0]!r} is missing"
            raise invalid_input(f"row {index}: {fault}; the model takes {', '.join(self._features)}")
        return [row[name] for name in self._features]
