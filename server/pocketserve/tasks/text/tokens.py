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

    @property
    def continues(self) -> bool:
        """Return whether it is in the same word as the token before."""
        return False


class InnerToken(Token):
    """A token in the same word as the one before."""

    __slots__ = ()

    @property
    def continues(self) -> bool:
        return True


class Special(NamedTuple):
    """Special tokens around texts, and the sides at which a text is padded and cut."""

    first: tuple[int, ...] = ()  # in front of a text
    middle: tuple[int, ...] = ()  # between the two texts of a pair
    last: tuple[int, ...] = ()  # at the end
    pad: int = 0  # fills up to a model's fixed length
    unknown: int = 0  # replaces pieces that the vocabulary lacks
    single_types: tuple[
        int, ...
    ] = ()  # token types of ``first``, the text and ``last``; empty for BERT's
    pair_types: tuple[
        int, ...
    ] = ()  # of ``first``, a text, ``middle``, the other text and ``last``
    pad_type: int = 0
    pad_left: bool = False
    cut_left: bool = False
    pair_fault: str = ""  # why pairs can't be encoded; empty if they can

    def types_of_single(self) -> tuple[int, ...]:
        """Return the token types of each part of a single text."""
        return self.single_types or (0,) * (len(self.first) + 1 + len(self.last))

    def types_of_pair(self) -> tuple[int, ...]:
        """Return the token types of each part of a pair; BERT's second text and what follows it have type 1."""
        before = len(self.first) + 1 + len(self.middle)
        return self.pair_types or (0,) * before + (1,) * (1 + len(self.last))


class Tokenizer(Protocol):
    """Cuts texts into numbered pieces."""

    special: Special

    def tokens(self, text: str) -> Iterator[Token]:
        """Yield the pieces in order, one by one: whoever needs few does not pay for a long text."""
        ...


def keeps_case(vocabulary: Iterable[str]) -> bool:
    """Return whether a vocabulary has words with capitals; special words in brackets do not count."""
    words = [
        word for word in vocabulary if not (word.startswith("[") and word.endswith("]"))
    ]
    return sum(word != word.lower() for word in words) > CASED_SHARE * len(words)
