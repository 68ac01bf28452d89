"""Our BERT tokenizer gives the tokens and offsets of the ``tokenizers`` library."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.tokenizers import tokenizer_of
from text_models import VOCABULARY, bert_inputs, model

library = pytest.importorskip(
    "tokenizers", reason="the comparison needs the tokenizers library"
)

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=400,
)

CORPUS: list[str] = json.loads(
    (Path(__file__).parent / "data" / "scripts.json").read_text(encoding="utf-8")
)

NEWER = {0x1734, 0x1885, 0x1886, 0x11938, 0x166D, 0x111C9, 0x8E2, 0x890, 0x891, 0x110CD}
"""Characters whose category changed after the library's Unicode version."""


def pipeline(**rules: Any) -> Any:
    """Return the library's BERT pipeline on our vocabulary."""
    made = library.Tokenizer(
        library.models.WordPiece(
            {w: n for n, w in enumerate(VOCABULARY)}, unk_token="[UNK]"
        )
    )
    made.normalizer = library.normalizers.BertNormalizer(**rules)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    return made


RULES: dict[str, dict[str, Any]] = {
    "uncased": {"lowercase": True},
    "cased": {"lowercase": False},
    "lower-case with accents": {"lowercase": True, "strip_accents": False},
    "cased without accents": {"lowercase": False, "strip_accents": True},
    "not cleaned": {"lowercase": True, "clean_text": False},
    "Chinese words as words": {"lowercase": True, "handle_chinese_chars": False},
}


@pytest.fixture(scope="module", params=RULES, ids=str)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any]:
    """Return the library's and our tokenizer for the same ``tokenizer.json``."""
    made = pipeline(**RULES[request.param])
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    facts = model(
        folder,
        bert_inputs(),
        {"y": (1, 2)},
        files={"tokenizer.json": json.loads(made.to_str())},
    )
    own = tokenizer_of(facts, TextOptions())
    assert type(own).__name__ == "WordPiece"
    return made, own


def pieces(pair: tuple[Any, Any], text: str) -> tuple[list[Any], list[Any]]:
    """Return tokens and offsets of both."""
    encoded = pair[0].encode(text, add_special_tokens=False)
    return [tuple(token) for token in pair[1].tokens(text)], [
        (n, *place) for n, place in zip(encoded.ids, encoded.offsets, strict=True)
    ]


@pytest.mark.parametrize("line", CORPUS, ids=lambda line: line[:12])
def test_corpus(pair: tuple[Any, Any], line: str) -> None:
    """Sentences in many scripts, token by token."""
    own, expected = pieces(pair, line)
    assert own == expected


@given(
    st.text(
        st.sampled_from("".join(VOCABULARY).replace("#", "") + " \t\n.,ÄéñÅ中国я#'"),
        max_size=60,
    )
)
@SETTINGS
def test_random_texts_of_known_letters(text: str) -> None:
    """Texts that the vocabulary can spell."""
    own, expected = pieces(_uncased(), text)
    assert own == expected


@given(st.text(max_size=30))
@SETTINGS
def test_random_texts(text: str) -> None:
    """Excludes characters newer than the library's tables."""
    if any(is_newer(char) for char in text):
        return
    own, expected = pieces(_uncased(), text)
    assert own == expected


def is_newer(char: str) -> bool:
    """Return whether a character is from the last ten years.

    Python's and the library's tables may differ for it.
    """
    if ord(char) in NEWER or unicodedata.category(char) == "Cn":
        return True
    return unicodedata.ucd_3_2_0.category(char) == "Cn"


def _uncased() -> tuple[Any, Any]:
    if "pair" not in _CACHE:
        made = pipeline(lowercase=True)
        from pocketserve.tasks.text.tokens import Special
        from pocketserve.tasks.text.wordpiece import WordPiece

        vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
        _CACHE["pair"] = (
            made,
            WordPiece(vocabulary, Special((2,), (3,), (3,), 0, 1), lower_case=True),
        )
    return _CACHE["pair"]


_CACHE: dict[str, tuple[Any, Any]] = {}


def test_every_character() -> None:
    """All Unicode characters, one by one between letters, except newer ones."""
    wrong = []
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code < 0xE000 or is_newer(chr(code)):
            continue
        text = f"a{chr(code)}b"
        own = "".join(_word(text))
        if own != _uncased()[0].normalizer.normalize_str(text).replace(" ", ""):
            wrong.append(hex(code))
    assert wrong == []


def _word(text: str) -> list[str]:
    tokenizer = _uncased()[1]
    return [
        word for word, _ in tokenizer._split(tokenizer._characters(text, 0, len(text)))
    ]
