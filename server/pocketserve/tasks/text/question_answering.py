"""A question and a text in, the places in the text that answer it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import (
    NO_HINTS,
    Answer,
    AnswerOptions,
    Arrays,
    Hints,
    Prepared,
    TaskDefinition,
    invalid_input,
)
from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.text.options import TEXT, TextOptions
from pocketserve.tasks.text.texts import TokenInputs, read_object, token_inputs
from pocketserve.tasks.text.tokenizers import has_tokenizer, tokenizer_of
from pocketserve.tasks.text.tokens import Token, Tokenizer
from pocketserve.tensors import Array

NAME = "question-answering"
TOP_K = 3
CANDIDATES = 30
"""Starts and ends that are looked at in each window: all pairs of them."""

MAX_WINDOWS = 2000
QUESTION_SHARE = 0.5
"""Of the model's length that a question may take: the rest is for the text."""


def fits(facts: ModelFacts) -> bool:
    """A tokenizer in the file's metadata, and outputs that are called start and end."""
    return (
        has_tokenizer(facts) and len(facts.outputs) == 2 and None not in (_named(facts, "start"), _named(facts, "end"))
    )


def create(facts: ModelFacts) -> QuestionAnswering:
    """Set up with the manifest's ``[text]``, the file's metadata and the files beside it.

    Raises:
        ModelLoadError: there is no tokenizer, or the model's tensors do not fit.
    """
    options = facts.manifest.section(TextOptions)
    own = {name: spec.name for spec in facts.outputs for name in (*spec.aliases, spec.name)}
    start = own.get(options.start_output) if options.start_output else _named(facts, "start")
    end = own.get(options.end_output) if options.end_output else _named(facts, "end")
    names = [spec.name for spec in facts.outputs]
    if start not in names or end not in names or start == end:
        raise ModelLoadError(
            f"model.toml: task {NAME}: name text.start_output and text.end_output; the model has {', '.join(names)}"
        )
    tokenizer = tokenizer_of(facts, options)
    inputs = token_inputs(facts, options, tokenizer.special, NAME)
    return QuestionAnswering(tokenizer, inputs, (str(start), str(end)), options)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its text, the text's tokens, and for each run the first token and where it stands in the run."""

    text: str
    tokens: Sequence[Token]
    windows: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Found:
    """An answer's first and last character's places, and how likely it is."""

    start: int
    end: int
    score: float


class QuestionAnswering:
    """Takes ``{"question": ..., "context": ...}``. A context that is longer than the model is read in windows.

    Args:
        outputs: names of the logits of start and end, each [1, tokens].
    """

    name = NAME

    def __init__(
        self, tokenizer: Tokenizer, inputs: TokenInputs, outputs: tuple[str, str], options: TextOptions
    ) -> None:
        self._tokenizer = tokenizer
        self._inputs = inputs
        self._outputs = outputs
        self._options = options

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        """See :class:`~pocketserve.tasks.base.Task`. One run a window."""
        asked = read_object(body, ("question", "context"), self._options.max_chars)
        special = self._inputs.special
        length = self._inputs.length - len(special.first) - len(special.middle) - len(special.last)
        question = [token.number for token in self._tokenizer.tokens(asked["question"])]
        room = length - len(question)
        if room < max(1, length * (1 - QUESTION_SHARE)) or not question:
            maximum = int(length * QUESTION_SHARE)
            raise invalid_input(f"the question has {len(question)} tokens; this model takes 1 to {maximum}")
        tokens = [_without_space(token, asked["context"]) for token in self._tokenizer.tokens(asked["context"])]
        step = max(1, room - min(self._options.stride, room // 2))
        starts = range(0, max(1, len(tokens) - room + step), step)
        if len(starts) > MAX_WINDOWS:
            raise invalid_input(f"the context has {len(tokens)} tokens, too many for this model; send it in parts")
        front = len(special.first) + len(question) + len(special.middle)
        parts = ([token.number for token in tokens[at : at + room]] for at in cancellable(starts))
        runs = [self._inputs.arrays(question, part) for part in parts]
        windows = [(at, min(room, len(tokens) - at), front) for at in starts]
        return Prepared(runs, Asked(asked["context"], tokens, windows))

    def answer(self, runs: Sequence[Arrays], options: AnswerOptions, context: Any = None) -> Answer:
        """``{"answer", "start", "end", "score"}``, likeliest first; places in characters of the context."""
        found: dict[tuple[int, int], Found] = {}
        for run, window in zip(runs, context.windows, strict=True):
            for place in self._window(run, window, context.tokens):
                known = found.get((place.start, place.end))
                if known is None or known.score < place.score:
                    found[place.start, place.end] = place
        best = sorted(found.values(), key=lambda place: (-place.score, place.start, place.end))
        lowest = float("-inf") if options.threshold is None else options.threshold
        top_k = TOP_K if options.top_k is None else options.top_k
        return [
            {"answer": context.text[p.start : p.end], "start": p.start, "end": p.end, "score": p.score}
            for p in best[:top_k]
            if p.score >= lowest
        ]

    def describe(self) -> Mapping[str, str]:
        """See :class:`~pocketserve.tasks.base.Described`."""
        return {
            "input": 'JSON: {"question": "...", "context": "..."}',
            "preprocessing": f"tokens by the model's own vocabulary, windows of {self._inputs.length} tokens",
            "answer": "places in the context with score, start and end in characters",
            "content_type": "application/json",
            "example": "question.json",
        }

    def _window(self, run: Arrays, window: tuple[int, int, int], tokens: Sequence[Token]) -> list[Found]:
        first, count, front = window
        start, end = (_shares(run[name].reshape(-1), front, count) for name in self._outputs)
        found = []
        for begins in np.argsort(-start, kind="stable")[:CANDIDATES]:
            for ends in np.argsort(-end, kind="stable")[:CANDIDATES]:
                if 0 <= ends - begins < self._options.max_answer:
                    places = tokens[first + begins].start, tokens[first + ends].end
                    found.append(Found(*places, float(start[begins] * end[ends])))
        return found


def _without_space(token: Token, text: str) -> Token:
    """A token whose place begins behind the space that SentencePiece counts to the word."""
    start = token.start
    while start < token.end and text[start].isspace():
        start += 1
    return token if start == token.start else Token(token.number, start, token.end)


def _shares(logits: Array, front: int, count: int) -> Array:
    """Softmax over the context's tokens and the first token, which stands for "no answer"; the context's part of it."""
    context = logits[front : front + count].astype(np.float64)
    everything = np.append(context, float(logits[0]))
    powers = np.exp(everything - everything.max())
    shares: Array = (powers / powers.sum())[:-1]
    return shares


def _named(facts: ModelFacts, part: str) -> str | None:
    """The only output whose name, or whose name in the metadata, has a word in it."""
    described = facts.metadata.outputs if facts.metadata is not None else ()
    found = []
    for index, spec in enumerate(facts.outputs):
        said = described[index].name if index < len(described) else ""
        if part in (said or " ".join((spec.name, *spec.aliases))).casefold():
            found.append(spec.name)
    return found[0] if len(found) == 1 else None


TASK = TaskDefinition(NAME, fits, create, (TEXT,))
