"""The byte-level vocabulary of GPT-2 and Whisper: tokens to text, and text to tokens.

Source: openai/gpt-2, encoder.py, for the alphabet of bytes, the words and the merges.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.speech.facts import SpeechTokens

TOKENIZER: Final = "tokenizer.json"
MAX_TOKENIZER_BYTES: Final = 16 << 20
MAX_MERGES: Final = 1 << 20
MAX_WORD_BYTES: Final = 256
"""A longer word is encoded in pieces: merging takes quadratic time."""

_ENDINGS: Final = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
_BYTES_PER_TOKEN: Final = 200  # of memory, for a token with its merge


class ByteVocabulary:
    """Converts between texts and tokens.

    Args:
        numbers: tokens by their text in the alphabet of bytes.
        merges: pairs that are joined, the first ones first.
    """

    def __init__(
        self, numbers: Mapping[str, int], merges: Sequence[tuple[str, str]]
    ) -> None:
        alphabet = byte_alphabet()
        self._letters = alphabet
        values = {letter: value for value, letter in enumerate(alphabet)}
        self._numbers = numbers
        self._bytes: dict[int, bytes] = {}
        for text, number in numbers.items():
            if all(letter in values for letter in text):
                self._bytes[number] = bytes(values[letter] for letter in text)
        self._ranks: dict[tuple[str, str], int] = {}
        for rank, pair in enumerate(merges):
            self._ranks.setdefault(pair, rank)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; unknown ones, such as times, have none."""
        pieces = [self._bytes.get(token, b"") for token in tokens]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = []
        for word in words_of(text):
            content = word.encode("utf-8", errors="replace")
            for start in range(0, len(content), MAX_WORD_BYTES):
                part = content[start : start + MAX_WORD_BYTES]
                tokens += self._word_tokens(part)
        return tokens

    def _word_tokens(self, word: bytes) -> list[int]:
        parts = [self._letters[value] for value in word]
        while len(parts) > 1:
            best = self._best_pair(parts)
            if best is None:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return [self._numbers[part] for part in parts if part in self._numbers]

    def _best_pair(self, parts: Sequence[str]) -> int | None:
        """Return the place of the pair that is joined next."""
        best = None
        best_rank = len(self._ranks)
        for place in range(len(parts) - 1):
            pair = (parts[place], parts[place + 1])
            rank = self._ranks.get(pair, best_rank)
            if rank < best_rank:
                best = place
                best_rank = rank
        return best


def byte_alphabet() -> list[str]:
    """Return the printable character that stands for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    alphabet = []
    unprintable = 0
    for value in range(256):
        if value in printable:
            alphabet.append(chr(value))
        else:
            alphabet.append(chr(256 + unprintable))
            unprintable += 1
    return alphabet


def words_of(text: str) -> list[str]:
    """Split a text: letters, digits or other characters, with a space before them."""
    words = []
    at = 0
    while at < len(text):
        end = _word_end(text, at)
        words.append(text[at:end])
        at = end
    return words


def _word_end(text: str, start: int) -> int:
    for ending in _ENDINGS:
        if text.startswith(ending, start):
            return start + len(ending)
    first = start
    if text[start] == " " and start + 1 < len(text):
        first = start + 1
    kind = _kind(text[first])
    if kind != " ":
        return _end_of_kind(text, first, kind)
    end = _end_of_kind(text, start, " ")
    # The last space before a word belongs to that word.
    if end < len(text) and end - start > 1:
        end -= 1
    return end


def _end_of_kind(text: str, start: int, kind: str) -> int:
    end = start
    while end < len(text) and _kind(text[end]) == kind:
        end += 1
    return end


def _kind(character: str) -> str:
    """Return ``L`` for letters, ``N`` for digits, a space, or ``S`` for others."""
    if character.isspace():
        return " "
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "S"


def vocabulary_of(facts: ModelFacts, tokens: SpeechTokens) -> ByteVocabulary:
    """Read ``tokenizer.json`` beside a model.

    Raises:
        ModelLoadError: it is missing, or no byte-level vocabulary.
    """
    path = facts.beside(TOKENIZER)
    if path is None:
        raise ModelLoadError(
            f"{TOKENIZER} is missing beside the model; copy it from the model's source"
        )
    content = facts.read_beside(path, MAX_TOKENIZER_BYTES)
    try:
        document = json.loads(content.decode("utf-8"))
        model = document["model"]
        numbers = _checked_numbers(model["vocab"], tokens.vocabulary)
        merges = _merges(model["merges"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelLoadError(
            f"{TOKENIZER} beside the model has no byte-level vocabulary"
            f" ({str(error)[:100]}); copy it from the model's source"
        ) from None
    facts.weights["tokenizer"] = _BYTES_PER_TOKEN * (len(numbers) + len(merges))
    return ByteVocabulary(numbers, merges)


def _checked_numbers(vocabulary: Any, size: int) -> dict[str, int]:
    """Return the texts of a vocabulary; special tokens are beyond it.

    Raises:
        ValueError: a token is outside the model's range.
    """
    numbers = {}
    for text, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < size:
            raise ValueError(f"token {number!r:.40} is outside 0 to {size - 1}")
        if not text.startswith("<|"):
            numbers[text] = number
    return numbers


def _merges(entries: Any) -> list[tuple[str, str]]:
    """Return the merges; files have them as lists, or as texts with a space."""
    if not isinstance(entries, list) or len(entries) > MAX_MERGES:
        raise ValueError("its merges are not a list")
    merges = []
    for entry in entries:
        pair = entry.split(" ") if isinstance(entry, str) else entry
        first, second = pair
        merges.append((first, second))
    return merges
