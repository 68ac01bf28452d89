"""A text in, the likeliest classes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Hints, Prepared, Runs, TaskDefinition
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import Ranking, ranking_of
from pocketserve.tasks.scores import CLASSIFICATION
from pocketserve.tasks.text.encoders import StringEncoder, TokenEncoder, encoder_of
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.texts import read_texts
from pocketserve.tasks.text.tokenizers import tokenizer_unit

NAME = "text-classification"


def fits(facts: ModelFacts) -> bool:
    """Return whether the file's metadata has a tokenizer, and labels of the only output."""
    labelled = len(facts.outputs) == 1 and bool(facts.output_metadata(0).associated_files)
    return labelled and tokenizer_unit(facts) is not None


def create(facts: ModelFacts) -> TextClassification:
    """Set up with the manifest's ``[text]``, the file's metadata and the files beside it."""
    options = facts.manifest.section(TextOptions)
    ranking = ranking_of(facts, options.output, NAME)
    return TextClassification(encoder_of(facts, options, NAME), ranking, options.max_chars)


class TextClassification:
    """Takes a text in UTF-8, or JSON: a text, a list of texts, ``{"text": ...}``. Those of more than ``max_chars`` are
    refused; what a model cannot take of a shorter one is cut off.
    """

    name = NAME

    def __init__(self, encoder: StringEncoder | TokenEncoder, ranking: Ranking, max_chars: int) -> None:
        self.labels = ranking.labels.names
        self.problem = ranking.problem
        self._encoder = encoder
        self._ranking = ranking
        self._max_chars = max_chars

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        texts, many = read_texts(body, hints, self._max_chars)
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

    def describe(self) -> Mapping[str, str]:
        return {
            "input": "a text in UTF-8, or a JSON list of texts",
            "preprocessing": "tokens by the model's own vocabulary, cut to the model's length",
            "answer": "labels with scores, best first",
            "content_type": "text/plain; charset=utf-8",
            "example": "text.txt",
        }


TASK = TaskDefinition(NAME, fits, create, (TEXT, CLASSIFICATION))
