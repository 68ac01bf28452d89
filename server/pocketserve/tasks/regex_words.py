"""The word splitter of TFLite's text classifiers: what a delimiter's matches leave over is a word.

The delimiter comes with a model file, so from a stranger. Python's matcher can be driven into exponential time; the
matcher that such patterns were written for cannot. Only patterns that cannot do that here are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pocketserve.tasks.tokens import Special, Token

MAX_PATTERN_CHARS = 400
_CLASS = r"\[\^?\]?(?:\\[^\d]|\[:\w+:\]|[^\]\\])*\]"
_ATOM = rf"(?:{_CLASS}|\\[wWsSdDtnr]|\\[^\w\s]|[^\\\[\](){{}}*+?|^$.])"
_OTHERWISE = ("[:", "[[", "--", "&&", "~~", "||")
_BRANCH = re.compile(rf"{_ATOM}*(?:{_ATOM}[+*?]?)")


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
        """See :class:`~pocketserve.tasks.tokens.Tokenizer`."""
        start = 0
        for match in self._delimiter.finditer(text):
            if match.start() > start:
                yield self._token(text, start, match.start())
            if match.end() > match.start():
                start = match.end()
        if start < len(text):
            yield self._token(text, start, len(text))

    def _token(self, text: str, start: int, end: int) -> Token:
        word = text[start:end].lower() if self._lower_case else text[start:end]
        return Token(self._vocabulary.get(word, self.special.unknown), start, end)


def compile_delimiter(pattern: str) -> re.Pattern[str]:
    r"""A delimiter that runs in linear time: alternatives of characters and classes, a repetition only at the end.

    Shorthand classes such as ``\w`` mean ASCII, as in the matcher that the patterns were written for.

    Raises:
        ValueError: the pattern is of another form.
    """
    inner = pattern
    while inner.startswith("(") and inner.endswith(")") and not inner.startswith("(?"):
        inner = inner[1:-1]
    branches = _split_alternatives(inner)
    odd = next((part for part in _OTHERWISE if part in inner), None)
    if odd is not None:
        raise ValueError(f"the delimiter {pattern[:80]!r} has {odd!r}, which other matchers read differently")
    if len(pattern) > MAX_PATTERN_CHARS or not all(_BRANCH.fullmatch(branch) for branch in branches):
        raise ValueError(f"the delimiter {pattern[:80]!r} is not a simple list of characters and classes")
    try:
        return re.compile(inner, re.ASCII)
    except (re.error, OverflowError) as error:
        raise ValueError(f"the delimiter {pattern[:80]!r} cannot be read: {error}") from None


def _split_alternatives(pattern: str) -> list[str]:
    """The parts between bars that are neither escaped nor in a class."""
    parts = re.findall(rf"(?:{_CLASS}|\\.|[^\\|])+", pattern, re.DOTALL)
    return parts or [pattern]
