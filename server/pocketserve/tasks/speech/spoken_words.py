"""Words with times, and where two results of the same speech agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff"
"""Scripts without spaces: Japanese, Chinese, Thai and Lao. A character is a word."""

_WORDS: Final = re.compile(rf"\s{{0,64}}(?:[{_UNSPACED}]|[^\s{_UNSPACED}]+)")
_IGNORED: Final = re.compile(r"[\W_]+")
SHIFTS: Final = (0, 1, -1, 2, -2)
"""Words by which a new result may differ from the one before, nearest first."""

COMPARED_WORDS: Final = 3


class TextSegment(Protocol):
    """A text with its start and end in seconds, and its probability."""

    @property
    def text(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def score(self) -> float: ...


class SpokenWord(NamedTuple):
    """A word with its times in seconds.

    Attributes:
        text: with the space before it.
        ends_segment: whether it is the last one of its segment.
        score: probability, the mean of its segment.
    """

    text: str
    start: float
    end: float
    ends_segment: bool
    score: float

    @property
    def key(self) -> str:
        """Return the word without case, spaces and punctuation."""
        return _IGNORED.sub("", self.text).casefold()


def spoken_words(segments: Iterable[TextSegment]) -> list[SpokenWord]:
    """Return the words of segments; their times are proportional to their letters."""
    words: list[SpokenWord] = []
    for segment in segments:
        texts = _WORDS.findall(segment.text)
        letters = sum([len(text) for text in texts])
        seconds = segment.end - segment.start
        position = 0
        for number, text in enumerate(texts):
            start = segment.start + seconds * position / letters
            position += len(text)
            end = segment.start + seconds * position / letters
            is_last = number == len(texts) - 1
            words.append(SpokenWord(text, start, end, is_last, segment.score))
    return words


def common_length(
    words: Sequence[SpokenWord], other_words: Sequence[SpokenWord]
) -> int:
    """Return the number of first words that both have, apart from punctuation."""
    count = 0
    for word, other in zip(words, other_words, strict=False):
        if word.key != other.key:
            break
        count += 1
    return count


def words_after(
    words: Sequence[SpokenWord], final: Sequence[SpokenWord]
) -> list[SpokenWord]:
    """Return the words of a new result that follow the final ones.

    A new result may write the final words differently, such as "6.20" for "6 20". So
    the last final words are looked for near their place.
    """
    if not final:
        return list(words)
    best_length = 0
    best_place = len(final)
    for shift in SHIFTS:
        place = len(final) + shift
        if not 0 < place <= len(words):
            continue
        length = _common_end(words[:place], final)
        if length > best_length:
            best_length = length
            best_place = place
    return list(words[best_place:])


def _common_end(words: Sequence[SpokenWord], other_words: Sequence[SpokenWord]) -> int:
    """Return the number of equal last words, up to a limit."""
    reversed_words = words[: -COMPARED_WORDS - 1 : -1]
    reversed_other_words = other_words[: -COMPARED_WORDS - 1 : -1]
    return common_length(reversed_words, reversed_other_words)


def joined_text(words: Iterable[SpokenWord]) -> str:
    """Return the text of words."""
    return "".join([word.text for word in words])
