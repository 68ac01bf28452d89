"""The word splitter of TFLite's text classifiers.

The delimiter comes with an untrusted model file. Python's matcher can be driven into
exponential time, unlike the matcher that such patterns were written for. Only patterns
of linear time are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pocketserve.tasks.cancellation import CHECK_INTERVAL, checkpoint
from pocketserve.tasks.text.tokens import Special, Token

MAX_PATTERN_CHARS = 400
_AMBIGUOUS = ("[:", "[[", "--", "&&", "~~", "||")
# A shorthand, an escaped sign, a class (a leading bracket is literal; no escaped
# digits), or a character.
_ATOM = (
    r"(?:\\[wWsSdDtnr]|\\[^\w\s]|\[\^?+\]?+(?:\\\D|[^\\\]])*+\]|[^\\\[\](){}*+?|^$.])"
)
_ALTERNATIVE = rf"{_ATOM}++[+*?]?"
_SIMPLE = re.compile(rf"{_ALTERNATIVE}(?:\|{_ALTERNATIVE})*+")


class RegexWords:
    """Look up the words between matches of a delimiter.

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
        unknown = self.special.unknown
        for begin, end in self._delimiters(text):
            if begin > start:
                word = text[start:begin]
                if self._lower_case:
                    word = word.lower()
                yield Token(self._vocabulary.get(word, unknown), start, begin)
            start = end

    def _delimiters(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the ranges of matches, and the text's end.

        The text is searched block by block, as the matcher cannot be interrupted. Except for
        its repetition, a match is no longer than its pattern. So one that begins in a block
        is found if the search reaches that far beyond the block.
        """
        at = 0
        while at < len(text):
            checkpoint()
            block_end = at + CHECK_INTERVAL
            search_end = min(len(text), block_end + MAX_PATTERN_CHARS)
            match = self._delimiter.search(text, at, search_end)
            if match is None or match.start() >= block_end:
                at = block_end
                continue
            if match.end() == search_end:
                match = self._delimiter.match(text, match.start()) or match
            yield match.span()
            at = match.end()
        yield len(text), len(text)


def compile_delimiter(pattern: str) -> re.Pattern[str]:
    r"""Compile a delimiter that matches in linear time.

    It consists of alternatives of characters and classes, with a repetition only at the
    end. Shorthand classes such as ``\w`` mean ASCII, as in the original matcher.

    Raises:
        ValueError: the pattern has another form.
    """
    quoted = f"the delimiter {pattern[:80]!r}"
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"{quoted} has more than {MAX_PATTERN_CHARS} characters")
    inner = pattern
    while inner.startswith("(") and inner.endswith(")") and not inner.startswith("(?"):
        inner = inner[1:-1]
    for part in _AMBIGUOUS:
        if part in inner:
            raise ValueError(
                f"{quoted} has {part!r}, which other matchers read differently"
            )
    if not _SIMPLE.fullmatch(inner):
        raise ValueError(f"{quoted} is not a simple list of characters and classes")
    try:
        compiled = re.compile(inner, re.ASCII)
    except (re.error, OverflowError) as error:
        raise ValueError(f"{quoted} cannot be read: {error}") from None
    if compiled.match(""):
        raise ValueError(f"{quoted} can match the empty text, so no word would end")
    return compiled
