"""A text in, the likeliest classes out."""

from __future__ import annotations

from typing import Any

from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Hints, Prepared, Runs, TaskDefinition
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.entries import RANKED, AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import answer_labels
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import ranking_of
from pocketserve.tasks.scores import CLASSIFICATION
from pocketserve.tasks.text.encoders import encoder_of
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.texts import read_texts
from pocketserve.tasks.text.tokenizers import tokenizer_unit

NAME = "text-classification"


def fits(facts: ModelFacts) -> bool:
    """Return whether the file's metadata has a tokenizer, and labels of the only output."""
    labelled = len(facts.outputs) == 1 and bool(facts.output_metadata(0).associated_files)
    return labelled and tokenizer_unit(facts) is not None


class TextClassification:
    """Takes a text in UTF-8, or JSON: a text, a list of texts, ``{"text": ...}``. Those of more than ``max_chars`` are
    refused; what a model cannot take of a shorter one is cut off.
    """

    name = NAME

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(TextOptions)
        self._ranking = ranking_of(facts, options.output, NAME)
        self._encoder = encoder_of(facts, options, NAME)
        self.labels = self._ranking.labels.names
        self.problem = self._ranking.problem

    def structure(self) -> dict[str, Any]:
        return {"labels": answer_labels(self.labels, self._ranking.options.label_offset)}

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        texts, many = read_texts(body, hints, self._options.max_chars)
        return Prepared([self._encoder.encode(text) for text in cancellable(texts)], many)

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"label", "index", "score"}``, best first; for a list of texts each with ``input``, its number."""
        answer: Answer = []
        for number, run in enumerate(runs):
            more = {"input": number} if context else {}
            ranking = self._ranking.with_labels_of(run)
            for row in ranking.rows(run[ranking.spec.name])[:1]:
                answer += ranking.best(row, options, **more)
        return answer

    def form(self) -> Form:
        """Return what the task takes."""
        return Form(("text", "texts"), self._ranking.parameters)

    def describe(self) -> dict[str, str]:
        return {
            "input": "a text in UTF-8, or a JSON list of texts",
            "preprocessing": "tokens by the model's own vocabulary, cut to the model's length",
            "answer": "labels with scores, best first",
            "content_type": "text/plain; charset=utf-8",
            "example": "text.txt",
        }


FIELDS = (*RANKED, AnswerField("input", "integer", "the number of the text in a list, from 0"))
CALL = TaskCall("classify", "text", "Classification", FIELDS)
TASK = TaskDefinition(NAME, fits, TextClassification, (TEXT, CLASSIFICATION), calls=(CALL,))
