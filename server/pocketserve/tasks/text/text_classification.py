"""Classify a text."""

from __future__ import annotations

from typing import Any, NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    ExtendedAnswer,
    Hints,
    Prepared,
    Runs,
    TaskDefinition,
)
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.entries import RANKED, AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.labels import answer_labels
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.ranking import ranking_of
from pocketserve.tasks.scores import CLASSIFICATION
from pocketserve.tasks.text.encoders import TokenEncoder, encoder_of
from pocketserve.tasks.text.hugging_face.sentence_modules import reject_modules_behind
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.texts import read_texts_or_pairs
from pocketserve.tasks.text.tokenizers import tokenizer_unit
from pocketserve.tensors import TensorSpec

NAME = "text-classification"


def fits(facts: ModelFacts) -> bool:
    """Return whether the metadata describes a text classifier."""
    labelled = len(facts.outputs) == 1 and bool(
        facts.output_metadata(0).associated_files
    )
    return labelled and tokenizer_unit(facts) is not None


def _check_rows(spec: TensorSpec) -> None:
    """Raise if an output has scores per token."""
    if len(spec.shape) > 2 and any(length != 1 for length in spec.shape[1:-1]):
        raise ModelLoadError(
            f"model.toml: task {NAME} needs one row of scores for a text, but output {spec.name!r} has the shape "
            f"{list(spec.shape)}, scores for each token; name another one as text.output, or use task tensors"
        )


class _Counted(NamedTuple):
    """The context of a request that asked for usage."""

    many: bool
    tokens: int


class TextClassification:
    """Classify UTF-8 text, or a JSON text, pair, or list of these.

    A pair is ``{"text": ..., "text_pair": ...}``. Texts of more than ``max_chars`` characters
    are rejected; shorter ones are cut to the model's length.
    """

    name = NAME

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(TextOptions)
        reject_modules_behind(facts)
        self._ranking = ranking_of(facts, options.output, NAME)
        _check_rows(self._ranking.spec)
        self._encoder = encoder_of(facts, options, NAME)
        self.labels = self._ranking.labels.names
        self.problem = self._ranking.problem

    def structure(self) -> dict[str, Any]:
        return {
            "labels": answer_labels(self.labels, self._ranking.options.label_offset)
        }

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        inputs, many = read_texts_or_pairs(body, hints, self._options.max_chars)
        runs = []
        for text, pair in cancellable(inputs):
            runs.append(self._encoder.encode(text, pair))
        if not hints.values.get("usage"):
            return Prepared(runs, many)
        return Prepared(runs, _Counted(many, self._token_count(runs)))

    def answer(
        self, runs: Runs, options: AnswerOptions, context: Any = None
    ) -> Answer | ExtendedAnswer:
        """Return ``{"label", "index", "score"}``, best first.

        For a list of texts each entry also has ``input``, the text's number. If the hints
        asked for ``usage``, the answer includes the number of tokens and of classes.
        """
        many = context.many if isinstance(context, _Counted) else bool(context)
        entries: Answer = []
        classes = 0
        for number, run in enumerate(runs):
            more = {"input": number} if many else {}
            ranking = self._ranking.with_labels_of(run)
            for row in ranking.rows(run[ranking.spec.name])[:1]:
                classes = len(row)
                entries += ranking.best(row, options, **more)
        if not isinstance(context, _Counted):
            return entries
        return ExtendedAnswer(entries, {"tokens": context.tokens, "classes": classes})

    def _token_count(self, runs: Runs) -> int:
        if not isinstance(self._encoder, TokenEncoder):
            return 0
        return sum(int(self._encoder.is_text(run).sum()) for run in runs)

    def form(self) -> Form:
        """Return the task's inputs and parameters."""
        encoder = self._encoder
        pairs = (
            isinstance(encoder, TokenEncoder)
            and not encoder.tokenizer.special.pair_fault
        )
        kinds = ("text", "texts", "pair") if pairs else ("text", "texts")
        return Form(kinds, self._ranking.parameters)

    def describe(self) -> dict[str, str]:
        return {
            "input": 'a text in UTF-8, a pair {"text": "...", "text_pair": "..."}, or a JSON list of either',
            "preprocessing": "tokens by the model's own vocabulary, cut to the model's length",
            "answer": "labels with scores, best first",
            "content_type": "text/plain; charset=utf-8",
            "example": "text.txt",
        }


FIELDS = (
    *RANKED,
    AnswerField("input", "integer", "the number of the text in a list, from 0"),
)
CALL = TaskCall("classify", "text", "Classification", FIELDS)
TASK = TaskDefinition(
    NAME, fits, TextClassification, (TEXT, CLASSIFICATION), calls=(CALL,)
)
