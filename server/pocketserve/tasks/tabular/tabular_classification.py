"""Rows of named numbers in, the likeliest classes of each row out."""

from __future__ import annotations

from typing import Any

from pocketserve.tasks.base import Answer, AnswerOptions, Runs, TaskDefinition
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import ranking_of
from pocketserve.tasks.scores import CLASSIFICATION
from pocketserve.tasks.tabular.tables import TableTask, rows_of

NAME = "tabular-classification"


class TabularClassification(TableTask):
    """Ranks the classes of each row."""

    name = NAME
    answer_text = "labels with scores, best first"

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__(rows_of(facts, NAME))
        self._ranking = ranking_of(facts, "", NAME)
        self.labels = self._ranking.labels.names
        self.problem = self._ranking.problem

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first; of several rows each with ``row``, its number."""
        answer: Answer = []
        ranking = self._ranking.with_labels_of(runs[0])
        for number, row in enumerate(ranking.rows(runs[0][ranking.spec.name])):
            answer += ranking.best(row, options, **({"row": number} if context > 1 else {}))
        return answer


TASK = TaskDefinition(NAME, None, TabularClassification, (CLASSIFICATION,))
