"""Rows of named numbers in, the likeliest classes of each row out."""

from __future__ import annotations

from typing import Any

from pocketserve.tasks.base import Answer, AnswerOptions, Runs, TaskDefinition
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import Ranking, ranking_of
from pocketserve.tasks.scores import CLASSIFICATION
from pocketserve.tasks.tabular.tables import Rows, TableTask, rows_of

NAME = "tabular-classification"


def create(facts: ModelFacts) -> TabularClassification:
    """Set up with the manifest's ``[features]``, ``[classification]`` and labels."""
    return TabularClassification(rows_of(facts, NAME), ranking_of(facts, "", NAME))


class TabularClassification(TableTask):
    """Ranks the classes of each row."""

    name = NAME
    answer_text = "labels with scores, best first"

    def __init__(self, rows: Rows, ranking: Ranking) -> None:
        super().__init__(rows)
        self.labels = ranking.labels.names
        self.problem = ranking.problem
        self._ranking = ranking

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first; of several rows each with ``row``, its number."""
        answer: Answer = []
        ranking = self._ranking.with_labels_of(runs[0])
        for number, row in enumerate(ranking.rows(runs[0][ranking.spec.name])):
            answer += ranking.best(row, options, **({"row": number} if context > 1 else {}))
        return answer


TASK = TaskDefinition(NAME, None, create, (CLASSIFICATION,))
