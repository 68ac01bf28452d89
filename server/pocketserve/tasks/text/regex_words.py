"""The word splitter of TFLite's text classifiers: words stand between a delimiter's matches.

The delimiter comes with a model file, so it is not to be trusted. Python's matcher can be driven into exponential
time; the matcher that such patterns were written for cannot. Only patterns that cannot do that here are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pocketserve.tasks.cancellation import CHECK_INTERVAL, checkpoint
from pocketserve.tasks.text.tokens import Special, Token

MAX_PATTERN_CHARS = 400
_AMBIGUOUS = ("[:", "[[", "--", "&&", "~~", "||")
# A shorthand, an escaped sign, a class (a bracket in front stands for itself; no escaped digits), or a character.
_ATOM = (
    r"(?:\\[wWsSdDtnr]|\\[^\w\s]|\[\^?+\]?+(?:\\\D|[^\\\]])*+\]|[^\\\[\](){}*+?|^$.])"
)
_ALTERNATIVE = rf"{_ATOM}++[+*?]?"
_SIMPLE = re.compile(rf"{_ALTERNATIVE}(?:\|{_ALTERNATIVE})*+")


class RegexWords:
    """Looks up the words between matches of a delimiter.

    Args:
        delimiter: see :func:`compile_delimiter`.
        vocabulary: number by word; <START>, <PAD> and <UNKNOWN> are its special words.
    """

    def __init__(
        self, delimiter: str, vocabulary: Mapping[str, int], *, lower_case: bool = False
    ) -> None:
        self._delimiter = compile_delimiter(delimiter)
        self._vocabulary = vocabulary
        self._lower_case = lower_case
        first = (vocabulary["<START>"],) if "<START>" in vocabulary else ()
        self.special = Special(
            first,
            pad=vocabulary.get("<PAD>", 0),
            unknown=vocabulary.get("<UNKNOWN>", 0),
        )

    def tokens(self, text: str) -> Iterator[Token]:
        start = 0
        for begin, end in self._delimiters(text):
            if begin > start:
                word = (
                    text[start:begin].lower() if self._lower_case else text[start:begin]
                )
                yield Token(
                    self._vocabulary.get(word, self.special.unknown), start, begin
                )
            start = end

    def _delimiters(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the ranges of matches, and of the text's end, block by block: the matcher cannot be stopped."""
        at = 0
        while at < len(text):
            checkpoint()
            block = (
                at + CHECK_INTERVAL
            )  # what begins before it is found as in the whole text: but for its repetition,
            end = min(
                len(text), block + MAX_PATTERN_CHARS
            )  # a match is no longer than its pattern
            match = self._delimiter.search(text, at, end)
            if match is None or match.start() >= block:
                at = block
                continue
            if match.end() == end:
                match = self._delimiter.match(text, match.start()) or match
            yield match.span()
            at = match.end()
        yield len(text), len(text)


def compile_delimiter(pattern: str) -> re.Pattern[str]:
    r"""Compile a delimiter of linear time: alternatives of characters and classes, a repetition only at the end.

    Shorthand classes such as ``\w`` mean ASCII, as in the matcher that the patterns were written for.

    Raises:
        ValueError: the pattern is of another form.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(
            f"the delimiter {pattern[:80]!r} has more than {MAX_PATTERN_CHARS} characters"
        )
    inner = pattern
    while inner.startswith("(") and inner.endswith(")") and not inner.startswith("(?"):
        inner = inner[1:-1]
    ambiguous = next((part for part in _AMBIGUOUS if part in inner), None)
    if ambiguous is not None:
        raise ValueError(
            f"the delimiter {pattern[:80]!r} has {ambiguous!r}, which other matchers read differently"
        )
    if not _SIMPLE.fullmatch(inner):
        raise ValueError(
            f"the delimiter {pattern[:80]!r} is not a simple list of characters and classes"
        )
    try:
        compiled = re.compile(inner, re.ASCII)
    except (re.error, OverflowError) as error:
        raise ValueError(
            f"the delimiter {pattern[:80]!r} cannot be read: {error}"
        ) from None
    if compiled.match(""):
        raise ValueError(
            f"the delimiter {pattern[:80]!r} can match nothing, so that words end nowhere"
        )
    return compiled
