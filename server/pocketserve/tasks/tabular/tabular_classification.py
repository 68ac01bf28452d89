"""Classify rows of named numbers."""

from __future__ import annotations

from typing import Any

from pocketserve.tasks.base import Answer, AnswerOptions, Runs, TaskDefinition
from pocketserve.tasks.entries import RANKED, AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import answer_labels
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.scores import CLASSIFICATION
from pocketserve.tasks.tabular.class_targets import class_targets
from pocketserve.tasks.tabular.tables import TableTask, rows_of

NAME = "tabular-classification"


class TabularClassification(TableTask):
    """Ranks the classes of each row."""

    name = NAME
    answer_text = "labels with scores, best first"

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__(rows_of(facts, NAME))
        self._targets = class_targets(facts, NAME)
        first = self._targets[0]
        self._ranking = first.ranking
        self.labels = first.names if len(self._targets) == 1 else ()
        self.problem = first.problem

    def form(self) -> Form:
        """Return the task's inputs and parameters."""
        return super().form()._replace(parameters=self._ranking.parameters)

    def structure(self) -> dict[str, Any]:
        return {
            **super().structure(),
            "labels": answer_labels(self.labels, self._ranking.options.label_offset),
        }

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first.

        Of several rows each entry has ``row``, its number, and of several targets ``name``, the target's.
        """
        tables = [target.table(runs[0], context) for target in self._targets]
        answer: Answer = []
        for row in range(max(map(len, tables))):
            for table in tables:
                if row >= len(table):
                    continue
                more: dict[str, Any] = {"row": row} if context > 1 else {}
                if len(tables) > 1:
                    more["name"] = table.target.name
                answer += table.best(row, options, more)
        return answer


FIELDS = (
    *RANKED,
    AnswerField("row", "integer", "the number of the row, from 0"),
    AnswerField("name", "text", "the target; empty if the model has one"),
)
CALL = TaskCall("classify", "rows", "Classification", FIELDS)
TASK = TaskDefinition(
    NAME, None, TabularClassification, (CLASSIFICATION,), calls=(CALL,)
)
