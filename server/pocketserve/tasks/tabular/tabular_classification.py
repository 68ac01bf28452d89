"""Rows of named numbers in, the likeliest classes of each row out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition, single_run
from pocketserve.tasks.classification_options import CLASSIFICATION
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import Ranking, ranking_of
from pocketserve.tasks.tabular.tables import Rows, rows_of

NAME = "tabular-classification"


def fits(facts: ModelFacts) -> bool:
    """Never: what the numbers mean is for the owner to say."""
    return False


def create(facts: ModelFacts) -> TabularClassification:
    """Set up with the manifest's ``[features]``, ``[classification]`` and labels.

    Raises:
        ModelLoadError: the model does not take rows, or has several outputs of which none is called scores.
    """
    return TabularClassification(rows_of(facts, NAME), ranking_of(facts, "", NAME))


class TabularClassification:
    """Takes rows as :class:`~pocketserve.tasks.tabular.tables.Rows` does."""

    name = NAME

    def __init__(self, rows: Rows, ranking: Ranking) -> None:
        self.labels = ranking.labels.names
        self.problem = ranking.problem
        self._rows = rows
        self._ranking = ranking

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`."""
        found = self._rows.read(body)
        return single_run(found, len(next(iter(found.values()))))

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """``{"label", "index", "score"}``, best first; of several rows each with ``row``, its number."""
        answer: Answer = []
        ranking = self._ranking.with_labels_of(runs[0])
        rows = ranking.rows(runs[0][ranking.spec.name])
        for number, row in enumerate(rows):
            answer += ranking.best(row, options, **({"row": number} if context > 1 else {}))
        return answer

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": self._rows.describe(),
            "preprocessing": "none",
            "answer": "labels with scores, best first",
            "content_type": "application/json",
            "example": "row.json",
        }


TASK = TaskDefinition(NAME, fits, create, (CLASSIFICATION,))
