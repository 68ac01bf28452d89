"""Answer questions by ranges of a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Hints,
    Prepared,
    Runs,
    TaskDefinition,
    invalid_input,
)
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.entries import SCORE, AnswerField, TaskCall
from pocketserve.tasks.form import Form
from pocketserve.tasks.model_facts import CONFIG, MetadataError, ModelFacts
from pocketserve.tasks.parameters import parameter
from pocketserve.tasks.scores import softmax
from pocketserve.tasks.text.encoders import full_name, token_encoder
from pocketserve.tasks.text.hugging_face import answer_spans
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.texts import read_object
from pocketserve.tasks.text.tokenizers import tokenizer_unit
from pocketserve.tasks.text.tokens import Token
from pocketserve.tensors import Array

NAME = "question-answering"
TOP_K = 3
CANDIDATES = 30  # starts and ends of which all pairs are scored, in each window
MAX_WINDOWS = 2000
STRIDE = 128
MAX_ANSWER = 30
QUESTION_SHARE = (
    0.5  # of the model's length that a question may take: the rest is for the text
)


def fits(facts: ModelFacts) -> bool:
    """Return whether outputs and metadata are a question answerer's."""
    outputs = (_output(facts, "start"), _output(facts, "end"))
    return (
        len(facts.outputs) == 2
        and None not in outputs
        and tokenizer_unit(facts) is not None
    )


class _Window(NamedTuple):
    """The part of the context that a run reads.

    Attributes:
        first, size: the first of its tokens, and how many there are.
        offset: the position in the run of the part's first token.
    """

    first: int
    size: int
    offset: int


class QuestionAnswering:
    """Takes ``{"question": ..., "context": ...}``.

    A context that is longer than the model is read in windows.
    """

    name = NAME

    def __init__(self, facts: ModelFacts) -> None:
        self._options = options = facts.manifest.section(TextOptions)
        start = _chosen_output(facts, options.start_output, "start")
        end = _chosen_output(facts, options.end_output, "end")
        if start is None or end is None or start == end:
            names = ", ".join(spec.name for spec in facts.outputs)
            raise ModelLoadError(
                f"model.toml: task {NAME}: name text.start_output and text.end_output; the model has {names}"
            )
        self._outputs = (start, end)  # logits, each [1, tokens]
        self._encoder = token_encoder(facts, options, NAME)
        fault = self._encoder.tokenizer.special.pair_fault
        if fault:
            raise ModelLoadError(
                f"tokenizer.json beside the model cannot be used: {fault} is not supported"
            )
        self._stride = STRIDE if options.stride is None else options.stride
        self._max_answer = options.max_answer or MAX_ANSWER
        self._is_of_transformers = "model_type" in facts.json_beside(CONFIG)
        if self._is_of_transformers:
            self._follow_transformers()

    def _follow_transformers(self) -> None:
        """Take the defaults of transformers' pipeline.

        Raises:
            MetadataError: its models that are padded on the left take the context first.
        """
        options = self._options
        encoder = self._encoder
        if encoder.tokenizer.special.pad_left:
            raise MetadataError(
                "tokenizer_config.json beside the model has padding_side = 'left', "
                f"which is not supported for {NAME}"
            )
        if options.max_length is None:
            length = min(encoder.length, answer_spans.MAX_LENGTH)
            self._encoder = encoder._replace(length=length)
        if options.stride is None:
            half = self._encoder.length // 2
            self._stride = min(half, answer_spans.MAX_STRIDE)
        self._max_answer = options.max_answer or answer_spans.MAX_ANSWER

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """Return a run per window.

        The context is the text, its tokens, the windows, and the number of tokens in
        front of each window.
        """
        texts = read_object(body, ("question", "context"), self._options.max_chars)
        tokenizer = self._encoder.tokenizer
        question = [token.number for token in tokenizer.tokens(texts["question"])]
        room = self._room(len(question))
        text = texts["context"]
        tokens = self._tokens(text)
        special = tokenizer.special
        before = len(special.first) + len(question) + len(special.middle)
        runs = []
        windows = []
        for at in cancellable(self._window_starts(len(tokens), room)):
            part = [token.number for token in tokens[at : at + room]]
            runs.append(self._encoder.arrays(question, part))
            padding = self._encoder.filling(before + len(part) + len(special.last))
            windows.append(_Window(at, len(part), padding + before))
        return Prepared(runs, (text, tokens, windows, before))

    def _room(self, question_tokens: int) -> int:
        """Return how many tokens of the context fit into a window.

        Raises:
            ApiError: the question is empty or too long.
        """
        special = self._encoder.tokenizer.special
        specials = len(special.first) + len(special.middle) + len(special.last)
        length = self._encoder.length - specials
        room = length - question_tokens
        if room < max(1, length * (1 - QUESTION_SHARE)) or not question_tokens:
            maximum = int(length * QUESTION_SHARE)
            raise invalid_input(
                f"the question has {question_tokens} tokens; this model takes 1 to {maximum}"
            )
        return room

    def _tokens(self, text: str) -> list[Token]:
        tokens = list(self._encoder.tokenizer.tokens(text))
        if self._is_of_transformers:
            return tokens
        return [_without_space(token, text) for token in tokens]

    def _window_starts(self, count: int, room: int) -> range:
        """Return the first token of each window.

        Raises:
            ApiError: there are too many windows.
        """
        shared = room - 1 if self._is_of_transformers else room // 2
        step = max(1, room - min(self._stride, shared))
        starts = range(0, max(1, count - room + step), step)
        if len(starts) > MAX_WINDOWS:
            raise invalid_input(
                f"the context has {count} tokens, too many for this model; send it in parts"
            )
        return starts

    def answer(self, runs: Runs, options: AnswerOptions, context: Any = None) -> Answer:
        """Return ``{"answer", "start", "end", "score"}``, likeliest first; positions in characters of the context."""
        text, _, windows, before = context
        top_k = TOP_K if options.top_k is None else options.top_k
        scores = self._scores(runs, context, top_k)
        if self._options.impossible:
            no_answer_scores = []
            for run, window in zip(runs, windows, strict=True):
                no_answer_scores.append(self._score_of_nothing(run, window, before))
            scores[0, 0] = min(no_answer_scores)
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        threshold = float("-inf") if options.threshold is None else options.threshold
        answers: Answer = []
        for (start, end), score in best[:top_k]:
            if score >= threshold:
                content = text[start:end]
                answers.append(
                    {"answer": content, "start": start, "end": end, "score": score}
                )
        return answers

    def _scores(
        self, runs: Runs, context: Any, top_k: int
    ) -> dict[tuple[int, int], float]:
        """Return the scores of answers by range of characters."""
        if self._is_of_transformers:
            return self._merged(runs, context, top_k)
        return self._best(runs, context)

    def _best(self, runs: Runs, context: Any) -> dict[tuple[int, int], float]:
        """Return the best score of each range of characters in any window."""
        _, tokens, windows, before = context
        scores: dict[tuple[int, int], float] = {}
        for run, window in zip(runs, windows, strict=True):
            for span, score in self._spans(run, window, before, tokens):
                scores[span] = max(score, scores.get(span, 0.0))
        return scores

    def _merged(
        self, runs: Runs, context: Any, top_k: int
    ) -> dict[tuple[int, int], float]:
        """Return the scores of whole words, added over all windows."""
        text, tokens, windows, before = context
        answers = answer_spans.MergedAnswers(text)
        count = answer_spans.candidate_count(top_k)
        for run, window in zip(runs, windows, strict=True):
            part = tokens[window.first : window.first + window.size]
            starts, ends = self._probabilities(run, window, before)
            spans = answer_spans.best_spans(
                starts[:-1], ends[:-1], count, self._max_answer
            )
            for span in spans:
                answers.add(*answer_spans.with_whole_words(span, part), span.score)
        return answers.scores()

    def form(self) -> Form:
        """Return what the task takes."""
        return Form(
            ("question",), (parameter("top_k", default=TOP_K), parameter("threshold"))
        )

    def describe(self) -> dict[str, str]:
        return {
            "input": 'JSON: {"question": "...", "context": "..."}',
            "preprocessing": f"tokens by the model's own vocabulary, windows of {self._encoder.length} tokens",
            "answer": "places in the context with score, start and end in characters",
            "content_type": "application/json",
            "example": "question.json",
        }

    def _score_of_nothing(
        self, run: Mapping[str, Array], window: _Window, before: int
    ) -> float:
        """Return the probability that a window has no answer.

        The first token stands for it.
        """
        starts, ends = self._probabilities(run, window, before)
        return float(starts[-1] * ends[-1])

    def _probabilities(
        self, run: Mapping[str, Array], window: _Window, before: int
    ) -> list[Array]:
        """Return each token's probability of starting and of ending.

        The last element of each is the probability of "no answer".
        """
        behind = window.offset + window.size
        probabilities = []
        for name in self._outputs:
            row = run[name].reshape(-1).astype(np.float64)
            probabilities.append(
                softmax(
                    np.append(row[window.offset : behind], row[window.offset - before])
                )
            )
        return probabilities

    def _spans(
        self,
        run: Mapping[str, Array],
        window: _Window,
        before: int,
        tokens: Sequence[Token],
    ) -> Iterator[tuple[tuple[int, int], float]]:
        """Yield the likeliest answers in a window, with scores."""
        first = window.first
        starts, ends = (row[:-1] for row in self._probabilities(run, window, before))
        for start in np.argsort(-starts, kind="stable")[:CANDIDATES]:
            for end in np.argsort(-ends, kind="stable")[:CANDIDATES]:
                if 0 <= end - start < self._max_answer:
                    yield (
                        (tokens[first + start].start, tokens[first + end].end),
                        float(starts[start] * ends[end]),
                    )


def _without_space(token: Token, text: str) -> Token:
    """Return a token without its leading space.

    SentencePiece counts the space to the word.
    """
    return token._replace(start=token.end - len(text[token.start : token.end].lstrip()))


def _chosen_output(facts: ModelFacts, name: str | None, part: str) -> str | None:
    """Return the output that the manifest names, or the usual one."""
    if not name:
        return _output(facts, part)
    by_alias = {}
    for spec in facts.outputs:
        for alias in (*spec.aliases, spec.name):
            by_alias[alias] = spec.name
    return by_alias.get(name)


def _output(facts: ModelFacts, part: str) -> str | None:
    """Return the only output whose name has a word in it."""
    names = []
    for i, spec in enumerate(facts.outputs):
        if part in full_name(spec, facts.output_metadata(i)):
            names.append(spec.name)
    if len(names) == 1:
        return names[0]
    return None


FIELDS = (
    AnswerField("answer", "text", "the answer, a part of the context"),
    AnswerField(
        "start", "integer", "the first character, as code points of the context"
    ),
    AnswerField("end", "integer", "the position after the last character"),
    SCORE,
)
CALL = TaskCall("answer", "question", "Span", FIELDS)
TASK = TaskDefinition(NAME, fits, QuestionAnswering, (TEXT,), calls=(CALL,))
