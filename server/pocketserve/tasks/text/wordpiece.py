"""BERT's tokenizer in plain Python: clean, split at spaces and punctuation, then cut words into known pieces.

Its tokens are those of the ``tokenizers`` library's BERT pipeline, which a phone cannot install without a compiler.
The special tokens around a text are text if they are written out in it: a user can't end the sentence for the model.
Other added tokens are found as the library finds them.
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
WORD_CHARS_LIMIT = (
    1000  # of what a file may ask for: cutting a word up costs its length squared
)
_CJK = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


@dataclass(eq=False, repr=False)
class WordPiece:
    """Cuts texts into pieces of a vocabulary."""

    vocabulary: Mapping[
        str, int
    ]  # number by piece; pieces inside a word start with ``prefix``
    special: Special  # [CLS], [SEP], [PAD] and [UNK]
    _: KW_ONLY
    lower_case: bool
    strip_accents: bool | None = None  # None: where letters become small
    clean: bool = True
    cjk: bool = True
    prefix: str = "##"
    max_word_chars: int = MAX_WORD_CHARS
    added: Sequence[AddedToken] = ()  # tokens at which a text is split first

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
        """Yield the tokens of a range without added tokens that match the text as it is."""
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
            yield Token(
                match.number, pairs[match.start][1], pairs[match.end - 1][1] + 1
            )
        yield from self._word_tokens(pairs[behind:])

    def _normalise(self, text: str) -> str:
        return "".join(part for part, _ in self._characters(text, 0, len(text)))

    def _characters(self, text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
        """Yield the characters of a normalised range, each with its position in the text."""
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
        """Yield words and single punctuation marks, with the position in the text of each of their characters."""
        word: list[str] = []
        positions: list[int] = []
        for part, position in chars:
            if part == " " or _is_punctuation(part):
                if word:
                    yield "".join(word), positions
                    word, positions = [], []
                if part != " ":
                    yield part, [position]
            else:
                word.append(part)
                positions.append(position)
        if word:
            yield "".join(word), positions

    def _pieces(self, word: str, positions: list[int]) -> list[Token]:
        """Return the longest known piece, and so on behind it; a word with an unknown rest is unknown as a whole."""
        pieces: list[Token] = []
        unknown = [Token(self.special.unknown, positions[0], positions[-1] + 1)]
        if len(word) > min(self.max_word_chars, WORD_CHARS_LIMIT):
            return unknown
        start = 0
        while start < len(word):
            if start:
                checkpoint()
            prefix = self.prefix if start else ""
            last = min(len(word), start + self._longest)
            ends = range(last, start, -1)
            end = next(
                (end for end in ends if prefix + word[start:end] in self.vocabulary),
                None,
            )
            if end is None:
                return unknown
            number = self.vocabulary[prefix + word[start:end]]
            behind = positions[end - 1] + 1
            kind = InnerToken if start else Token
            pieces.append(kind(number, positions[start], behind))
            start = end
        return pieces


@functools.lru_cache(maxsize=1 << 14)
def _normalised(
    char: str, lower_case: bool, strip_accents: bool, clean: bool, cjk: bool
) -> str:
    """Return nothing, a space, the character itself, or several characters."""
    kind = unicodedata.category(char)
    if char in "\t\n\r":
        return " "
    # Characters that this Python's Unicode does not know yet (Cn) are words to a tokenizer of any age.
    if clean and (char in "\0\ufffd" or kind in ("Cc", "Cf", "Co", "Cs")):
        return ""
    if (
        char.isspace() and char not in "\x1c\x1d\x1e\x1f"
    ):  # those are spaces to Python alone
        return " "  # spaces are spaces to whoever splits words, cleaned or not
    is_cjk = cjk and any(low <= ord(char) <= high for low, high in _CJK)
    if strip_accents:
        char = "".join(
            part
            for part in unicodedata.normalize("NFD", char)
            if unicodedata.category(part) != "Mn"
        )
    char = "".join(part.lower() for part in char) if lower_case else char
    return f" {char} " if is_cjk else char


@functools.lru_cache(maxsize=1 << 14)
def _is_punctuation(char: str) -> bool:
    return (
        char in string.punctuation
        if char.isascii()
        else unicodedata.category(char)[0] == "P"
    )
