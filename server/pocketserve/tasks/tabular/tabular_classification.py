"""Rows of named numbers in, the likeliest classes of each row out."""

from __future__ import annotations

from typing import Any

from pocketserve.tasks.base import Answer, AnswerOptions, Runs, TaskDefinition
from pocketserve.tasks.entries import RANKED, AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import answer_labels
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

    def form(self) -> Form:
        """Return what the task takes."""
        return super().form()._replace(parameters=self._ranking.parameters)

    def structure(self) -> dict[str, Any]:
        return {**super().structure(), "labels": answer_labels(self.labels, self._ranking.options.label_offset)}

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first; of several rows each with ``row``, its number."""
        answer: Answer = []
        ranking = self._ranking.with_labels_of(runs[0])
        for number, row in enumerate(ranking.rows(runs[0][ranking.spec.name])):
            answer += ranking.best(row, options, **({"row": number} if context > 1 else {}))
        return answer


FIELDS = (*RANKED, AnswerField("row", "integer", "the number of the row, from 0"))
CALL = TaskCall("classify", "rows", "Classification", FIELDS)
TASK = TaskDefinition(NAME, None, TabularClassification, (CLASSIFICATION,), calls=(CALL,))
