"""The likeliest answers of transformers' models, by the rule of its pipeline.

Source: huggingface/transformers 4.57, ``pipelines/question_answering.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pocketserve.tasks.cancellation import cancellable
from pocketserve.tasks.text.tokens import Token
from pocketserve.tensors import Array

MAX_LENGTH = 384
MAX_STRIDE = 128
MAX_ANSWER = 15


class ScoredSpan(NamedTuple):
    """An answer within a window: its first and last token, and its score."""

    first: int
    last: int
    score: float


def candidate_count(top_k: int) -> int:
    """Return the spans to score in each window.

    Spans of the same words are merged.
    """
    return 2 * top_k + 10


def best_spans(
    starts: Array, ends: Array, count: int, longest: int
) -> list[ScoredSpan]:
    """Return the likeliest spans, best first.

    Args:
        starts, ends: probabilities of each token.
        count: the spans to return at most.
        longest: tokens of a span at most.
    """
    spans: list[ScoredSpan] = []
    size = len(starts)
    for distance in cancellable(range(min(longest, size))):
        scores = starts[: size - distance] * ends[distance:]
        order = np.argsort(-scores, kind="stable")[:count]
        for first in order.tolist():
            spans.append(ScoredSpan(first, first + distance, float(scores[first])))
        spans.sort(key=lambda span: (-span.score, span.first, span.last))
        del spans[count:]
    return spans


def with_whole_words(span: ScoredSpan, tokens: Sequence[Token]) -> tuple[int, int]:
    """Return the characters of a span's words.

    They end at the window.
    """
    first = span.first
    last = span.last
    while first > 0 and tokens[first].continues:
        first -= 1
    while last + 1 < len(tokens) and tokens[last + 1].continues:
        last += 1
    return tokens[first].start, tokens[last].end


class MergedAnswers:
    """Answers by their text.

    The scores of equal texts are added.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._spans: dict[str, tuple[int, int]] = {}
        self._scores: dict[str, float] = {}

    def add(self, start: int, end: int, score: float) -> None:
        """Add an answer; of equal texts, the first one's position counts."""
        key = self._text[start:end].lower()
        self._spans.setdefault(key, (start, end))
        self._scores[key] = self._scores.get(key, 0.0) + score

    def scores(self) -> dict[tuple[int, int], float]:
        """Return the scores by range of characters.

        The space before a word doesn't belong to it.
        """
        scores = {}
        for key, (start, end) in self._spans.items():
            words = self._text[start:end]
            begin = end - len(words.lstrip())
            scores[begin, end] = self._scores[key]
        return scores
