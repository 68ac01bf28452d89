"""Added tokens, at which a text is split first.

The rules are those of the ``tokenizers`` library (``added_vocabulary.rs``): tokens that
match the text verbatim go before those that match it normalised. The earliest match
wins, and of several at one position the longest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

MAX_TOKENS = 1000  # one pattern tries all of them at each position of a text
MAX_CHARS = 200  # of one token
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class AddedToken(NamedTuple):
    """A token that is matched before or after a text is normalised.

    Attributes:
        single_word: whether it only matches as a whole word.
        lstrip: whether it includes the spaces on its left.
        rstrip: whether it includes the spaces on its right.
        normalized: whether it is compared with the normalised text.
    """

    number: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class Match(NamedTuple):
    """The range of an added token in a text."""

    number: int
    start: int
    end: int


class AddedTokens:
    """Find added tokens in a text."""

    def __init__(
        self, tokens: Sequence[AddedToken], normalise: Callable[[str], str]
    ) -> None:
        self._raw: dict[str, AddedToken] = {}
        self._normalised: dict[str, AddedToken] = {}
        for token in tokens:
            if token.normalized:
                self._normalised[normalise(token.content)] = token
            else:
                self._raw[token.content] = token
        self._raw_pattern = _pattern(self._raw)
        self._normalised_pattern = _pattern(self._normalised)

    @property
    def any_normalised(self) -> bool:
        """Return whether some tokens are compared with the normalised text."""
        return self._normalised_pattern is not None

    def in_raw(self, text: str) -> Iterator[Match]:
        """Yield the tokens that occur verbatim in a text."""
        return _matches(self._raw_pattern, self._raw, text)

    def in_normalised(self, text: str) -> Iterator[Match]:
        """Yield the tokens in a normalised text."""
        return _matches(self._normalised_pattern, self._normalised, text)


def added_token(value: Any) -> AddedToken | None:
    """Read an entry of ``added_tokens``; None for anything else."""
    if not isinstance(value, dict):
        return None
    number = value.get("id")
    content = value.get("content")
    if type(number) is not int or not 0 <= number < 1 << 31:
        return None
    if not isinstance(content, str) or not 0 < len(content) <= MAX_CHARS:
        return None
    flags = [value.get(key, False) for key in _FLAGS]
    if not all(isinstance(flag, bool) for flag in flags):
        return None
    return AddedToken(number, content, *flags)


def _pattern(tokens: dict[str, AddedToken]) -> re.Pattern[str] | None:
    contents = sorted((content for content in tokens if content), key=len, reverse=True)
    if contents:
        return re.compile("|".join(map(re.escape, contents)))
    return None


def _matches(
    pattern: re.Pattern[str] | None, tokens: dict[str, AddedToken], text: str
) -> Iterator[Match]:
    if pattern is None:
        return
    last = 0
    for match in pattern.finditer(text):
        token = tokens[match.group()]
        start, end = match.span()
        if start < last:  # inside the previous token's trailing spaces
            continue
        touches_word = _is_word_char(text, start - 1) or _is_word_char(text, end)
        if token.single_word and touches_word:
            continue
        while token.lstrip and start > last and text[start - 1].isspace():
            start -= 1
        while token.rstrip and end < len(text) and text[end].isspace():
            end += 1
        yield Match(token.number, start, end)
        last = end


def _is_word_char(text: str, at: int) -> bool:
    return 0 <= at < len(text) and (text[at].isalnum() or text[at] == "_")
