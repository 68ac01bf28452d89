"""The word splitter of TFLite's text classifiers: what a delimiter's matches leave over is a word.

The delimiter comes with a model file, so from a stranger. Python's matcher can be driven into exponential time; the
matcher that such patterns were written for cannot. Only patterns that cannot do that here are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pocketserve.tasks.cancellation import CHECK_INTERVAL, checkpoint
from pocketserve.tasks.text.tokens import Special, Token

MAX_PATTERN_CHARS = 400
_SHORTHANDS = "wWsSdDtnr"
_OPERATORS = "\\[](){}*+?|^$."
_OTHERWISE = ("[:", "[[", "--", "&&", "~~", "||")


class RegexWords:
    """Words between matches of a delimiter, each looked up in a vocabulary.

    Args:
        delimiter: see :func:`compile_delimiter`.
        vocabulary: number by word; <START>, <PAD> and <UNKNOWN> are its special words.
    """

    def __init__(self, delimiter: str, vocabulary: Mapping[str, int], *, lower_case: bool = False) -> None:
        self._delimiter = compile_delimiter(delimiter)
        self._vocabulary = vocabulary
        self._lower_case = lower_case
        first = (vocabulary["<START>"],) if "<START>" in vocabulary else ()
        pad, unknown = vocabulary.get("<PAD>", 0), vocabulary.get("<UNKNOWN>", 0)
        self.special = Special(first=first, pad=pad, unknown=unknown)

    def tokens(self, text: str) -> Iterator[Token]:
        """See :class:`~pocketserve.tasks.text.tokens.Tokenizer`."""
        start = 0
        for begins, ends in self._delimiters(text):
            if begins > start:
                yield self._token(text, start, begins)
            start = ends
        if start < len(text):
            yield self._token(text, start, len(text))

    def _delimiters(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where the delimiter matches something, block by block: the matcher itself cannot be stopped."""
        at = 0
        while at < len(text):
            checkpoint()
            sure = at + CHECK_INTERVAL  # what begins before it is found as in the whole text: but for its repetition,
            end = min(len(text), sure + MAX_PATTERN_CHARS)  # a match is no longer than its pattern
            match = self._delimiter.search(text, at, end)
            if match is None or match.start() >= sure:
                at = sure
                continue
            if match.end() == end:
                match = self._delimiter.match(text, match.start()) or match
            yield match.span()
            at = match.end()

    def _token(self, text: str, start: int, end: int) -> Token:
        word = text[start:end].lower() if self._lower_case else text[start:end]
        return Token(self._vocabulary.get(word, self.special.unknown), start, end)


def compile_delimiter(pattern: str) -> re.Pattern[str]:
    r"""A delimiter that runs in linear time: alternatives of characters and classes, a repetition only at the end.

    Shorthand classes such as ``\w`` mean ASCII, as in the matcher that the patterns were written for.

    Raises:
        ValueError: the pattern is of another form.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the delimiter {pattern[:80]!r} has more than {MAX_PATTERN_CHARS} characters")
    inner = pattern
    while inner.startswith("(") and inner.endswith(")") and not inner.startswith("(?"):
        inner = inner[1:-1]
    odd = next((part for part in _OTHERWISE if part in inner), None)
    if odd is not None:
        raise ValueError(f"the delimiter {pattern[:80]!r} has {odd!r}, which other matchers read differently")
    if not _is_simple(inner):
        raise ValueError(f"the delimiter {pattern[:80]!r} is not a simple list of characters and classes")
    try:
        compiled = re.compile(inner, re.ASCII)
    except (re.error, OverflowError) as error:
        raise ValueError(f"the delimiter {pattern[:80]!r} cannot be read: {error}") from None
    if compiled.match(""):
        raise ValueError(f"the delimiter {pattern[:80]!r} can match nothing, so that words end nowhere")
    return compiled


def _is_simple(pattern: str) -> bool:
    """Return whether each alternative is a row of atoms of which only the last is repeated; each character is seen
    once.
    """
    at, atoms, repeated = 0, 0, False
    while at < len(pattern):
        if pattern[at] == "|":
            if not atoms:
                return False
            at, atoms, repeated = at + 1, 0, False
            continue
        end = _atom_end(pattern, at)
        if repeated or end < 0:
            return False
        repeated = pattern[end : end + 1] in ("+", "*", "?")
        at, atoms = end + repeated, atoms + 1
    return atoms > 0


def _atom_end(pattern: str, at: int) -> int:
    """Behind a character, a shorthand, an escaped sign or a class; -1 where none begins."""
    char, behind = pattern[at], pattern[at + 1 : at + 2]
    if char == "[":
        return _class_end(pattern, at + 1)
    if char == "\\":
        sign = behind and not behind.isalnum() and behind != "_" and not behind.isspace()
        return at + 2 if behind and (behind in _SHORTHANDS or sign) else -1
    return -1 if char in _OPERATORS else at + 1


def _class_end(pattern: str, at: int) -> int:
    """Behind a class that began before ``at``; -1 where it does not end, or has an escaped digit."""
    at += pattern.startswith("^", at)
    at += pattern.startswith("]", at)  # at the front it stands for itself
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] == "\\":
            at += 1
            if pattern[at : at + 1].isdecimal():
                return -1
        at += 1
    return at + 1 if at < len(pattern) else -1
