"""Score the answers to labelled samples by one number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.decisions import DecisionRule, rule_of


class Score(NamedTuple):
    """The quality of a version's answers.

    Attributes:
        metric: ``accuracy``, the share of right classes, or of right decisions on
            several labels; or ``mean absolute error``.
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


def answer_rule(answers: Array, labels: Array) -> DecisionRule:
    """Return the decision rule for a model's answers to labelled samples."""
    rows = answers.reshape(len(labels), -1)
    return rule_of(rows, has_many_labels=labels.ndim == 2)


def score_answers(
    answers: Array, labels: Array, rule: DecisionRule | None = None
) -> Score:
    """Return the score of answers [samples, …].

    Args:
        rule: the original's; None finds it in these answers.
        labels: as of :class:`~pocketserve_lab.compress.recipe.TrainingData`.

    Raises:
        ConversionError: they do not fit the labels.
    """
    rows = answers.reshape(len(labels), -1)
    if labels.dtype.kind == "f":
        return _score_numbers(rows, labels.reshape(len(labels), -1))
    return _score_decisions(rows, labels, rule or answer_rule(answers, labels))


def _score_decisions(rows: Array, labels: Array, rule: DecisionRule) -> Score:
    decisions = rule.decide(rows)
    expected = labels
    if rule.by_column:
        expected = labels.reshape(len(labels), -1)
    if decisions.shape != expected.shape:
        raise ConversionError(
            f"the model answers {rows.shape[1]} scores a sample, "
            f"and the labels have {expected.shape[-1]}"
        )
    return Score("accuracy", float((decisions == expected).mean()), len(labels))


def _score_numbers(rows: Array, values: Array) -> Score:
    if rows.shape != values.shape:
        raise ConversionError(
            f"the model answers {rows.shape[1]} numbers a sample, "
            f"and the labels have {values.shape[1]}"
        )
    error = np.abs(rows.astype(np.float64) - values).mean()
    return Score("mean absolute error", float(error), len(values))
