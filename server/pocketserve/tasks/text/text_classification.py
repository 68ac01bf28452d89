"""A text in, the likeliest classes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve.tasks.base import NO_HINTS, Answer, AnswerOptions, Arrays, Hints, Prepared, TaskDefinition
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.classification_options import CLASSIFICATION
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import Ranking, ranking_of
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.texts import TokenInputs, is_text_input, read_texts, token_inputs
from pocketserve.tasks.text.tokenizers import has_tokenizer, tokenizer_of
from pocketserve.tasks.text.tokens import Tokenizer
from pocketserve.tensors import Array, TensorSpec

NAME = "text-classification"


def fits(facts: ModelFacts) -> bool:
    """A tokenizer in the file's metadata, and one output that has labels."""
    metadata = facts.metadata
    if metadata is None or len(facts.outputs) != 1 or not metadata.outputs:
        return False
    return has_tokenizer(facts) and bool(metadata.outputs[0].associated_files)


def create(facts: ModelFacts) -> TextClassification:
    """Set up with the manifest's ``[text]``, the file's metadata and the files beside it.

    Raises:
        ModelLoadError: there is no tokenizer, or the model's tensors do not fit.
    """
    options = facts.manifest.section(TextOptions)
    ranking = ranking_of(facts, options.output, NAME)
    return TextClassification(text_encoder(facts, options, NAME), ranking, options.max_chars)


class TextEncoder:
    """From a text to one run's arrays: through a tokenizer, or as it is for models that tokenize themselves."""

    def __init__(self, spec: TensorSpec, tokenizer: Tokenizer | None, inputs: TokenInputs | None) -> None:
        self.inputs = inputs
        self._spec = spec
        self._tokenizer = tokenizer

    def arrays(self, text: str) -> dict[str, Array]:
        """The input arrays of one text."""
        if self._tokenizer is None or self.inputs is None:
            array = np.empty([1] * len(self._spec.shape), dtype=object)
            array[...] = text.encode()
            return {self._spec.name: array}
        return self.inputs.arrays(self.inputs.first(self._tokenizer, text))


def text_encoder(facts: ModelFacts, options: TextOptions, task: str) -> TextEncoder:
    """Set up the way in.

    Raises:
        ModelLoadError: there is no tokenizer, or an input has no known role.
    """
    if len(facts.inputs) == 1 and is_text_input(facts.inputs[0]):
        return TextEncoder(facts.inputs[0], None, None)
    tokenizer = tokenizer_of(facts, options)
    return TextEncoder(facts.inputs[0], tokenizer, token_inputs(facts, options, tokenizer.special, task))


class TextClassification:
    """Takes a text in UTF-8, or JSON: a text, a list of texts, ``{"text": ...}``.

    Args:
        encoder: from a text to the inputs.
        ranking: of the output with the scores, one per class.
        max_chars: longer texts are refused; what a model cannot take of a shorter one is cut off.
    """

    name = NAME

    def __init__(self, encoder: TextEncoder, ranking: Ranking, max_chars: int) -> None:
        self.labels = ranking.labels.names
        self.problem = ranking.problem
        self._encoder = encoder
        self._ranking = ranking
        self._max_chars = max_chars

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`. One run a text."""
        texts, many = read_texts(body, hints, self._max_chars)
        return Prepared([self._encoder.arrays(text) for text in cancellable(texts)], many)

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """``{"label", "index", "score"}``, best first; for a list of texts each with ``input``, the text's number."""
        answer: Answer = []
        for number, run in enumerate(runs):
            more = {"input": number} if context else {}
            ranking = self._ranking.with_labels_of(run)
            for row in ranking.rows(run[ranking.spec.name])[:1]:
                answer += ranking.best(row, options, **more)
        return answer

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": "a text in UTF-8, or a JSON list of texts",
            "preprocessing": "tokens by the model's own vocabulary, cut to the model's length",
            "answer": "labels with scores, best first",
            "content_type": "text/plain; charset=utf-8",
            "example": "text.txt",
        }


TASK = TaskDefinition(NAME, fits, create, (TEXT, CLASSIFICATION))
