"""Accuracy of answers on labelled samples, in one number that says which way is better."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.convert.converter import ConversionError


class Score(NamedTuple):
    """Quality of a version's answers.

    Attributes:
        metric: ``accuracy``, the share of right classes; or ``mean absolute error``.
        value: of that metric.
        samples: their number.
    """

    metric: str
    value: float
    samples: int

    def loss_since(self, before: Score) -> float:
        """Return what was lost: of accuracy, the difference; of an error, its growth as a share. Negative is a gain."""
        if self.metric == "accuracy":
            return before.value - self.value
        return (self.value - before.value) / (before.value or 1.0)

    def __str__(self) -> str:
        return f"{self.value:.2%}" if self.metric == "accuracy" else f"{self.value:.4g}"


def score_answers(answers: Array, labels: Array) -> Score:
    """Return the score of answers [samples, …] against labels.

    The labels are as of :class:`~pocketserve_lab.compress.recipe.TrainingData`.

    Raises:
        ConversionError: they do not fit the labels.
    """
    rows = answers.reshape(len(labels), -1)
    if labels.dtype.kind == "f":
        values = labels.reshape(len(labels), -1)
        if rows.shape != values.shape:
            raise ConversionError(
                f"the model answers {rows.shape[1]} numbers a sample, and the labels have {values.shape[1]}"
            )
        return Score(
            "mean absolute error",
            float(np.abs(rows.astype(np.float64) - values).mean()),
            len(labels),
        )
    best = rows.argmax(axis=1) if rows.shape[1] > 1 else rows[:, 0] > 0.5
    return Score("accuracy", float((best == labels).mean()), len(labels))
