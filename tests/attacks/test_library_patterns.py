"""Accept common patterns of a ``tokenizer.json``, and refuse exponential ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.text.hugging_face.tokenizer_settings import TokenizerSettings
from pocketserve.tasks.text.library_patterns import (
    MAX_PATTERN_CHARS,
    check_pattern,
    patterns_in,
)
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.tokenizers import LibraryTokenizer, tokenizer_of
from pocketserve_wire import ApiError
from text_models import model

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
IN_USE = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "CLIP": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "Llama 3": CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "GPT-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    + CONTRACTIONS
    + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
    r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "T5": r" {2,}",
}
HOSTILE = {
    "nested": r"(a+)+$",
    "ambiguous": r"(a|a)*b",
    "counted": r"(?:a{0,50}){0,50}b",
    "twice": r"a{1,9}+b",
    "twice again": r"a+*b",
    "behind a class": r"([()]+)+x",
    "hidden in a class": r"([^]])+[a]",
    "nested class": r"[a[b]](c+)*",
    "refers": r"(a)\1",
    "recursion": r"(?<x>a\g<x>?b)",
    "condition": r"(?(1)a|b)",
    "absent": r"(?~abc)",
    "callout": r"(*FAIL)",
    "polynomial": r"a*a*a*b",
    "polynomial in groups": r"(a*)(a*)(a*)b",
    "polynomial by counts": r"a{0,999}a{0,999}a{0,999}b",
    "open class": r"[a",
    "open escape": "a\\",
    "long": "a" * (MAX_PATTERN_CHARS + 1),
}


@pytest.mark.parametrize("name", IN_USE)
def test_common_patterns_pass(name: str) -> None:
    check_pattern(IN_USE[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_exponential_patterns_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="its pattern"):
        check_pattern(HOSTILE[name])


def test_patterns_are_found_anywhere_in_the_file() -> None:
    part = {
        "type": "Sequence",
        "pretokenizers": [{"pattern": {"Regex": "a"}}, {"pattern": {"String": "b"}}],
    }
    assert list(patterns_in(part)) == ["a"]
    assert list(patterns_in(None)) == []


def tokenizer_json(pattern: str, key: str = "Regex") -> str:
    """Return a tokenizer that splits by a pattern."""
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    model = {
        "type": "WordLevel",
        "vocab": {"a": 0, "[UNK]": 1},
        "unk_token": "[UNK]",
    }
    text = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": split,
            "model": model,
        }
    )
    return text.replace('"Regex"', f'"{key}"')


@pytest.mark.parametrize("key", ["Regex", "\\u0052egex"])
def test_a_tokenizer_with_an_exponential_pattern_is_refused(
    tmp_path: Path, key: str
) -> None:
    """The pattern is checked as the library read it, however the file spells it."""
    pytest.importorskip("tokenizers", reason="needs the tokenizers library")
    facts = model(tmp_path, {"ids": (1, 8)}, {"y": (1, 2)})
    (facts.entry.folder / "tokenizer.json").write_text(tokenizer_json(r"(a+)+$", key))
    with pytest.raises(ModelLoadError, match="repeats a group"):
        tokenizer_of(facts, TextOptions())


def test_a_panic_of_the_library_is_reported_as_an_error() -> None:
    """It isn't an Exception: the request's thread would end without an answer."""
    library = pytest.importorskip("tokenizers", reason="needs the tokenizers library")
    tokenizer = LibraryTokenizer(
        library.Tokenizer.from_str(tokenizer_json(r"(a+)+$")), TokenizerSettings()
    )
    with pytest.raises(ApiError, match="the model's tokenizer cannot take this text"):
        list(tokenizer.tokens("a" * 30 + "!"))
