"""Texts to tokens and back, compared with the library of Hugging Face."""

from __future__ import annotations

import pytest

from pocketserve.tasks.speech.vocabulary import (
    ByteVocabulary,
    byte_alphabet,
    words_of,
)

TEXTS = (
    "Hello there, it's 25 degrees!",
    " two  spaces, \n\ttabs and trailing  ",
    "naïve café über Straße ½ x² 日本語 🙂 don't DON'T",
    "a_b __ ''s 12abc3 end.",
)
MERGES = [
    ("h", "e"),
    ("l", "l"),
    ("he", "ll"),
    ("Ġ", "t"),
    ("Ġt", "he"),
    ("r", "e"),
    ("Ã", "¼"),
]


def numbers() -> dict[str, int]:
    table = {letter: value for value, letter in enumerate(byte_alphabet())}
    for first, second in MERGES:
        table[first + second] = len(table)
    return table


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_equal_the_librarys(text: str) -> None:
    library = pytest.importorskip("tokenizers")
    reference = library.Tokenizer(library.models.BPE(numbers(), MERGES))
    splitter = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.pre_tokenizer = splitter
    tokens = ByteVocabulary(numbers(), MERGES).tokens(text)
    assert tokens == reference.encode(text).ids


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_become_their_text(text: str) -> None:
    vocabulary = ByteVocabulary(numbers(), MERGES)
    assert vocabulary.text(vocabulary.tokens(text)) == text


def test_broken_characters_are_replaced() -> None:
    vocabulary = ByteVocabulary(numbers(), [])
    assert vocabulary.text([0xE6, 0x97]) == "\ufffd"


def test_words_join_to_the_text() -> None:
    text = "".join(TEXTS)
    assert "".join(words_of(text)) == text


def test_long_words_are_encoded_in_pieces() -> None:
    vocabulary = ByteVocabulary(numbers(), MERGES)
    assert vocabulary.text(vocabulary.tokens("he" * 50_000)) == "he" * 50_000
