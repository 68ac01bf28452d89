"""Rows of named numbers in, one number per row out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.tasks import arrays
from pocketserve.tasks.base import Answer, AnswerOptions, invalid_input
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import strict_json


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

    def prepare(self, body: memoryview) -> dict[str, Array]:
        """See :class:`~pocketserve.tasks.base.Task`."""
        if arrays.is_npy(body):
            return {self._spec.name: arrays.fit_array(arrays.read_npy(body), self._spec)}
        if not arrays.looks_like_json(body):
            raise invalid_input("this model takes numbers: send a JSON array of features or an object by feature name")
        values = strict_json.loads(body)
        if isinstance(values, dict):
            values = [self._row(values, 0)]
        elif isinstance(values, list) and any(isinstance(row, dict) for row in values):
            values = [self._row(row, index) for index, row in enumerate(values)]
        elif isinstance(values, list):
            self._check_widths(values)
        return {self._spec.name: arrays.fit_values(values, self._spec)}

    def answer(self, outputs: Mapping[str, Array], options: AnswerOptions) -> Answer:
        """One entry per row: ``{"name", "value", "unit"}``; ``top_k`` and ``threshold`` do not apply."""
        (output,) = outputs.values()
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
