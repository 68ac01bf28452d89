"""The decision rule of a classifier's answers.

Training, scores and the check of conversions use the same one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pocketserve.tensors import Array

PROBABILITY_THRESHOLD = 0.5
LOGIT_THRESHOLD = 0.0


class DecisionRule(NamedTuple):
    """A decision rule.

    Attributes:
        threshold: above which a score means yes.
        by_column: whether each column is a decision; else the largest one wins.
    """

    threshold: float
    by_column: bool

    @property
    def takes_logits(self) -> bool:
        """Return whether the scores are logits, not probabilities."""
        return self.threshold == LOGIT_THRESHOLD

    def decide(self, rows: Array) -> Array:
        """Return the class of each row, or whether each score means yes."""
        decisions: Array = rows.argmax(axis=1)
        if self.by_column:
            decisions = rows > self.threshold
        return decisions


def rule_of(rows: Array, *, has_many_labels: bool = False) -> DecisionRule:
    """Return the rule for a model's answers [samples, scores].

    A score below 0 or above 1 is no probability. A few samples may all lie between, so
    the rule is found once, on the answers of the original to all samples.

    Args:
        has_many_labels: whether a sample may belong to several classes.
    """
    finite = rows[np.isfinite(rows)]
    are_probabilities = bool(((finite >= 0) & (finite <= 1)).all())
    threshold = LOGIT_THRESHOLD
    if are_probabilities:
        threshold = PROBABILITY_THRESHOLD
    return DecisionRule(threshold, by_column=has_many_labels or rows.shape[1] == 1)
