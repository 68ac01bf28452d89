"""BERT's tokenizer in Python.

Its tokens are those of the ``tokenizers`` library's BERT pipeline, which a phone cannot
install without a compiler. Special tokens written in a user's text are plain text, so a
user can't end the sentence for the model. Other added tokens match as in the library.
"""

from __future__ import annotations

import functools
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from pocketserve.tasks.cancellation import checkpoint, enumerate_cancellable
from pocketserve.tasks.text.hugging_face.added_tokens import AddedToken, AddedTokens
from pocketserve.tasks.text.tokens import InnerToken, Special, Token

MAX_WORD_CHARS = 100
# The most that a file may ask for: splitting a word costs its length squared.
WORD_CHARS_LIMIT = 1000
_WORD_CATEGORIES_REMOVED = ("Cc", "Cf", "Co", "Cs")
_CJK = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


@dataclass(eq=False, repr=False)
class WordPiece:
    """Split texts into pieces of a vocabulary.

    Attributes:
        vocabulary: numbers by piece; pieces inside a word start with ``prefix``.
        special: [CLS], [SEP], [PAD] and [UNK].
        strip_accents: None means the same as ``lower_case``.
        added: tokens at which a text is split first.
    """

    vocabulary: Mapping[str, int]
    special: Special
    _: KW_ONLY
    lower_case: bool
    strip_accents: bool | None = None
    clean: bool = True
    cjk: bool = True
    prefix: str = "##"
    max_word_chars: int = MAX_WORD_CHARS
    added: Sequence[AddedToken] = ()

    def __post_init__(self) -> None:
        strips = self.lower_case if self.strip_accents is None else self.strip_accents
        self._rules = (self.lower_case, strips, self.clean, self.cjk)
        self._longest = max(map(len, self.vocabulary), default=0)
        self._added = AddedTokens(self.added, self._normalise)

    def tokens(self, text: str) -> Iterator[Token]:
        behind = 0
        for match in self._added.in_raw(text):
            yield from self._plain_tokens(text, behind, match.start)
            yield Token(match.number, match.start, match.end)
            behind = match.end
        yield from self._plain_tokens(text, behind, len(text))

    def _plain_tokens(self, text: str, start: int, end: int) -> Iterator[Token]:
        """Yield the tokens of a range that contains no verbatim added token."""
        chars = self._characters(text, start, end)
        if not self._added.any_normalised:
            yield from self._word_tokens(chars)
            return
        pairs = list(chars)
        normalised = "".join(part for part, _ in pairs)
        behind = 0
        for match in self._added.in_normalised(normalised):
            yield from self._word_tokens(pairs[behind : match.start])
            behind = match.end
            first = pairs[match.start][1]
            last = pairs[match.end - 1][1]
            yield Token(match.number, first, last + 1)
        yield from self._word_tokens(pairs[behind:])

    def _normalise(self, text: str) -> str:
        return "".join(part for part, _ in self._characters(text, 0, len(text)))

    def _characters(self, text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
        """Yield a normalised range's characters, each with its position in the text."""
        rules = self._rules
        segment = text if end - start == len(text) else text[start:end]
        for position, char in enumerate_cancellable(segment):
            for part in _normalised(char, *rules):
                yield part, start + position

    def _word_tokens(self, chars: Iterable[tuple[str, int]]) -> Iterator[Token]:
        for word, positions in self._split(chars):
            yield from self._pieces(word, positions)

    def _split(
        self, chars: Iterable[tuple[str, int]]
    ) -> Iterator[tuple[str, list[int]]]:
        """Yield words and punctuation marks, with each character's position in the text."""
        word: list[str] = []
        positions: list[int] = []
        for part, position in chars:
            if part != " " and not _is_punctuation(part):
                word.append(part)
                positions.append(position)
                continue
            if word:
                yield "".join(word), positions
                word = []
                positions = []
            if part != " ":
                yield part, [position]
        if word:
            yield "".join(word), positions

    def _pieces(self, word: str, positions: list[int]) -> list[Token]:
        """Split a word into the longest known pieces.

        One unknown piece makes it unknown.
        """
        unknown = Token(self.special.unknown, positions[0], positions[-1] + 1)
        if len(word) > min(self.max_word_chars, WORD_CHARS_LIMIT):
            return [unknown]
        pieces: list[Token] = []
        start = 0
        while start < len(word):
            if start:
                checkpoint()
            end = self._longest_end(word, start)
            if end is None:
                return [unknown]
            piece = word[start:end]
            kind = Token
            if start:
                piece = self.prefix + piece
                kind = InnerToken
            number = self.vocabulary[piece]
            behind = positions[end - 1] + 1
            pieces.append(kind(number, positions[start], behind))
            start = end
        return pieces

    def _longest_end(self, word: str, start: int) -> int | None:
        """Return the longest known piece's end, or None.

        The piece begins at ``start``.
        """
        prefix = ""
        if start:
            prefix = self.prefix
        vocabulary = self.vocabulary
        last = min(len(word), start + self._longest)
        for end in range(last, start, -1):
            if prefix + word[start:end] in vocabulary:
                return end
        return None


@functools.lru_cache(maxsize=1 << 14)
def _normalised(
    char: str, lower_case: bool, strip_accents: bool, clean: bool, cjk: bool
) -> str:
    """Normalise a character; the result may be empty, a space or several characters."""
    if char in "\t\n\r":
        return " "
    # Characters that this Python's Unicode does not know yet (Cn) count as letters, so
    # that the tokens don't depend on Python's version.
    kind = unicodedata.category(char)
    if clean and (char in "\0\ufffd" or kind in _WORD_CATEGORIES_REMOVED):
        return ""
    # Python alone regards \x1c to \x1f as spaces. Spaces separate words even if the
    # model does not clean texts.
    if char.isspace() and char not in "\x1c\x1d\x1e\x1f":
        return " "
    is_cjk = cjk and any(low <= ord(char) <= high for low, high in _CJK)
    if strip_accents:
        char = _without_accents(char)
    if lower_case:
        char = "".join(part.lower() for part in char)
    if is_cjk:
        return f" {char} "
    return char


def _without_accents(char: str) -> str:
    parts = unicodedata.normalize("NFD", char)
    return "".join(part for part in parts if unicodedata.category(part) != "Mn")


@functools.lru_cache(maxsize=1 << 14)
def _is_punctuation(char: str) -> bool:
    if char.isascii():
        return char in string.punctuation
    return unicodedata.category(char)[0] == "P"
