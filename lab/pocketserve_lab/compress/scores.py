"""Score the answers to labelled samples by one number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.convert.converter import ConversionError


class Score(NamedTuple):
    """The quality of a version's answers.

    Attributes:
        metric: ``accuracy``, the share of right classes; or ``mean absolute error``.
        value: of that metric.
        samples: their number.
    """

    metric: str
    value: float
    samples: int

    def loss_since(self, before: Score) -> float:
        """Return the loss; a gain is negative.

        Of an accuracy it is the difference, of an error its growth as a share.
        """
        if self.metric == "accuracy":
            return before.value - self.value
        return (self.value - before.value) / (before.value or 1.0)

    def __str__(self) -> str:
        return f"{self.value:.2%}" if self.metric == "accuracy" else f"{self.value:.4g}"


def score_answers(answers: Array, labels: Array) -> Score:
    """Return the score of answers [samples, …].

    Args:
        labels: as of :class:`~pocketserve_lab.compress.recipe.TrainingData`.

    Raises:
        ConversionError: they do not fit the labels.
    """
    rows = answers.reshape(len(labels), -1)
    if labels.dtype.kind == "f":
        return _score_numbers(rows, labels.reshape(len(labels), -1))
    best = rows.argmax(axis=1) if rows.shape[1] > 1 else rows[:, 0] > 0.5
    return Score("accuracy", float((best == labels).mean()), len(labels))


def _score_numbers(rows: Array, values: Array) -> Score:
    if rows.shape != values.shape:
        raise ConversionError(
            f"the model answers {rows.shape[1]} numbers a sample, "
            f"and the labels have {values.shape[1]}"
        )
    error = np.abs(rows.astype(np.float64) - values).mean()
    return Score("mean absolute error", float(error), len(values))
