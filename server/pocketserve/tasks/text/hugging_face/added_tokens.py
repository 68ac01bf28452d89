"""Tokens that were added to a vocabulary: a text is split at them before it is cut into words.

The rules are those of the ``tokenizers`` library (``added_vocabulary.rs``): the longest of the tokens that begin at the
earliest position, first those that match the text as it is, then those that match it normalised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

MAX_TOKENS = 1000  # in one pattern, which tries them one after the other at each position of a text
MAX_CHARS = 200  # of one token


class AddedToken(NamedTuple):
    """A token that is found before a text is normalised, or after it.

    Attributes:
        single_word: whether it only counts between characters that belong to no word.
        lstrip, rstrip: whether it takes the spaces at its left, at its right.
        normalized: whether it is compared with the normalised text.
    """

    number: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class Match(NamedTuple):
    """An added token in a text, with the range that it takes."""

    number: int
    start: int
    end: int


class AddedTokens:
    """Finds added tokens in a text."""

    def __init__(
        self, tokens: Sequence[AddedToken], normalise: Callable[[str], str]
    ) -> None:
        self._raw = {token.content: token for token in tokens if not token.normalized}
        self._normalised = {
            normalise(token.content): token for token in tokens if token.normalized
        }
        self._raw_pattern = _pattern(self._raw)
        self._normalised_pattern = _pattern(self._normalised)

    @property
    def any_normalised(self) -> bool:
        """Return whether some tokens are compared with the normalised text."""
        return self._normalised_pattern is not None

    def in_raw(self, text: str) -> Iterator[Match]:
        """Yield the tokens that are written in a text as it is."""
        return _matches(self._raw_pattern, self._raw, text)

    def in_normalised(self, text: str) -> Iterator[Match]:
        """Yield the tokens in a normalised text."""
        return _matches(self._normalised_pattern, self._normalised, text)


def added_token(value: Any) -> AddedToken | None:
    """Read an entry of ``added_tokens``; None for anything else."""
    if not isinstance(value, dict):
        return None
    number, content = value.get("id"), value.get("content")
    if type(number) is not int or not 0 <= number < 1 << 31:
        return None
    if not isinstance(content, str) or not 0 < len(content) <= MAX_CHARS:
        return None
    flags = [
        value.get(key, False)
        for key in ("single_word", "lstrip", "rstrip", "normalized")
    ]
    if not all(isinstance(flag, bool) for flag in flags):
        return None
    return AddedToken(number, content, *flags)


def _pattern(tokens: dict[str, AddedToken]) -> re.Pattern[str] | None:
    contents = sorted((content for content in tokens if content), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, contents))) if contents else None


def _matches(
    pattern: re.Pattern[str] | None, tokens: dict[str, AddedToken], text: str
) -> Iterator[Match]:
    if pattern is None:
        return
    last = 0
    for match in pattern.finditer(text):
        token = tokens[match.group()]
        start, end = match.span()
        if start < last:  # the spaces behind the token before reach into this one
            continue
        if token.single_word and (
            _is_word_char(text, start - 1) or _is_word_char(text, end)
        ):
            continue
        while token.lstrip and start > last and text[start - 1].isspace():
            start -= 1
        while token.rstrip and end < len(text) and text[end].isspace():
            end += 1
        yield Match(token.number, start, end)
        last = end


def _is_word_char(text: str, at: int) -> bool:
    return 0 <= at < len(text) and (text[at].isalnum() or text[at] == "_")
