"""Tokenizers' interface and types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

# A vocabulary keeps case if more than this share of its words has capitals.
CASED_SHARE = 0.01


class Token(NamedTuple):
    """A piece of a text: its number and its range in characters."""

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
    """Special tokens around texts, and the sides of padding and truncation.

    Attributes:
        first: tokens before a text.
        middle: tokens between the texts of a pair.
        last: tokens at the end.
        pad: fills a model's fixed length.
        unknown: replaces pieces that the vocabulary lacks.
        single_types: token types of ``first``, the text and ``last``; empty for BERT's.
        pair_types: token types of ``first``, a text, ``middle``, the other text and
            ``last``; empty for BERT's.
        pair_fault: why pairs can't be encoded; empty if they can.
    """

    first: tuple[int, ...] = ()
    middle: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    pad: int = 0
    unknown: int = 0
    single_types: tuple[int, ...] = ()
    pair_types: tuple[int, ...] = ()
    pad_type: int = 0
    pad_left: bool = False
    cut_left: bool = False
    pair_fault: str = ""

    def types_of_single(self) -> tuple[int, ...]:
        """Return the token types of a single text's parts."""
        if self.single_types:
            return self.single_types
        return (0,) * (len(self.first) + 1 + len(self.last))

    def types_of_pair(self) -> tuple[int, ...]:
        """Return the token types of a pair's parts.

        By default BERT's: the second text and the tokens after it have type 1.
        """
        if self.pair_types:
            return self.pair_types
        before = len(self.first) + 1 + len(self.middle)
        return (0,) * before + (1,) * (1 + len(self.last))


class Tokenizer(Protocol):
    """Split texts into numbered pieces."""

    special: Special

    def tokens(self, text: str) -> Iterator[Token]:
        """Yield the pieces in order, lazily: a client of few pays for few."""
        ...


def keeps_case(vocabulary: Iterable[str]) -> bool:
    """Return whether words have capitals.

    Special words in brackets don't count.
    """
    count = cased = 0
    for word in vocabulary:
        if word.startswith("[") and word.endswith("]"):
            continue
        count += 1
        if word != word.lower():
            cased += 1
    return cased > CASED_SHARE * count
