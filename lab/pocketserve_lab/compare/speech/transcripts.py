"""Judge transcripts: words that are wrong, and time relative to the sound."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from pocketserve.terminal.errors import CommandError
from pocketserve_lab.measurement import shared_start

TASK: Final = "speech-to-text"
RUN_SECONDS: Final = "run_s"
"""The key of an answer's time, which the worker adds."""

MAX_WORDS: Final = 4_000
"""Differing words of two transcripts that are compared: half an hour of speech."""

_SEPARATING: Final = "CPSZ"
"""Unicode's groups of characters that are no part of a word.

Marks are: they are the vowels of Indic scripts."""

_INVISIBLE: Final = {0xAD: None, 0x200C: None, 0x200D: None}
"""A soft hyphen and the joiners, which stand within words."""


def words_in(text: str) -> list[str]:
    """Return the words of a text without case and punctuation.

    Apostrophes within words stay. A Chinese or Japanese character is a word.
    """
    folded = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    visible = folded.translate(_INVISIBLE)
    spaced = re.sub(r"([\u3040-\u30ff\u3400-\u9fff])", r" \1 ", visible)
    words = []
    for word in "".join(map(_letter_or_space, spaced)).split():
        stripped = word.strip("'")
        if stripped:
            words.append(stripped)
    return words


def _letter_or_space(character: str) -> str:
    """Return a space for a character that separates words."""
    if character == "'" or unicodedata.category(character)[0] not in _SEPARATING:
        return character
    return " "


def word_errors(expected: Sequence[str], words: Sequence[str]) -> int:
    """Return how many words to insert, remove or replace.

    Raises:
        CommandError: too many differ; the time grows with the square of their number.
    """
    start = shared_start(expected, words)
    expected, words = expected[start:], words[start:]
    end = shared_start(expected[::-1], words[::-1])
    expected = expected[: len(expected) - end]
    words = words[: len(words) - end]
    if len(expected) * len(words) > MAX_WORDS * MAX_WORDS:
        raise CommandError(
            f"transcripts of {len(expected):,} and {len(words):,} differing words are "
            "too long to compare; split the recordings"
        )
    return _aligned_errors(expected, words)


def _aligned_errors(expected: Sequence[str], words: Sequence[str]) -> int:
    """Return Levenshtein's distance."""
    row = list(range(len(words) + 1))
    for number, expected_word in enumerate(expected, 1):
        above = row
        row = [number]
        for place, word in enumerate(words):
            replaced = above[place] + (word != expected_word)
            row.append(min(replaced, above[place + 1] + 1, row[-1] + 1))
    return row[-1]


@lru_cache(maxsize=10_000)
def _errors_of(truth: str, text: str) -> tuple[int, int, int]:
    """Return the errors, and the numbers of true and of answered words."""
    expected = words_in(truth)
    words = words_in(text)
    return word_errors(expected, words), len(expected), len(words)


def text_of_answer(answer: Mapping[str, Any]) -> str:
    """Return the whole text of an answer."""
    return str(answer.get("text", ""))


def word_accuracy(answer: Mapping[str, Any], truth: Any) -> float:
    """Return 1 less the word error rate of one sound, at least 0."""
    errors, expected, words = _errors_of(str(truth), text_of_answer(answer))
    if not expected:
        return float(not words)
    return max(0.0, 1 - errors / expected)


def speech_figures(
    answers: Sequence[Mapping[str, Any]], truths: Sequence[Any]
) -> dict[str, float]:
    """Return the word error rate over all words, and the real-time factor."""
    errors = 0
    count = 0
    run_seconds = 0.0
    sound_seconds = 0.0
    for answer, truth in zip(answers, truths, strict=True):
        wrong, expected, _ = _errors_of(str(truth), text_of_answer(answer))
        errors += wrong
        count += expected
        run_seconds += float(answer.get(RUN_SECONDS, 0.0))
        sound_seconds += float(answer.get("duration", 0.0))
    figures = {"word error rate": errors / max(1, count)}
    if sound_seconds and run_seconds:
        figures["real-time factor"] = run_seconds / sound_seconds
    return figures
