"""The interface of tokenizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

CASED_SHARE = 0.01  # share of a vocabulary's words with capitals from which it is taken to keep case


class Token(NamedTuple):
    """A piece of a text: its number and its range, in characters."""

    number: int
    start: int
    end: int


class Special(NamedTuple):
    """Numbers that are no text."""

    first: tuple[int, ...] = ()  # in front of a text
    middle: tuple[int, ...] = ()  # between the two texts of a pair
    last: tuple[int, ...] = ()  # at the end
    pad: int = 0  # fills up to a model's fixed length
    unknown: int = 0  # stands for what the vocabulary does not have


class Tokenizer(Protocol):
    """Cuts texts into numbered pieces."""

    special: Special

    def tokens(self, text: str) -> Iterator[Token]:
        """Yield the pieces in order, one by one: whoever needs few does not pay for a long text."""
        ...


def keeps_case(vocabulary: Iterable[str]) -> bool:
    """Return whether a vocabulary has words with capitals; special words in brackets do not count."""
    words = [word for word in vocabulary if not (word.startswith("[") and word.endswith("]"))]
    return sum(word != word.lower() for word in words) > CASED_SHARE * len(words)
