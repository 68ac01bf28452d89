"""Compare the table of tokenizer classes with the installed transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from families.text_reference import import_torchvision
from pocketserve.tasks.text.hugging_face.class_settings import with_class_settings
from pocketserve.tasks.text.hugging_face.post_processor import special_of
from pocketserve.tasks.text.hugging_face.tokenizer_classes import (
    CLASSES,
    FIXED_CASE,
    GENERIC,
    IN_PYTHON,
    MODEL_TYPES,
    READS_CASE,
    reject_other_frame,
    reject_other_model,
)
from pocketserve.tasks.text.hugging_face.tokenizer_settings import TokenizerSettings

# The libraries warn of their own deprecations.
pytestmark = [pytest.mark.families, pytest.mark.filterwarnings("ignore")]


def class_of(name: str) -> Any:
    """Return a class of transformers."""
    import_torchvision()
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    return tokenizer_class_from_name(name)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_builds_its_row(name: str) -> None:
    tokenizer = class_of(name)()
    backend = tokenizer.backend_tokenizer
    document = json.loads(backend.to_str())
    known = CLASSES[name]

    reject_other_model(name, document, is_registered=False)
    # A new RemBERT tokenizer, unlike one from files, has no special tokens.
    if known.frame is not None and name != "RemBertTokenizer":
        special = special_of(document["post_processor"])
        reject_other_frame(name, special, {}, backend.token_to_id)
    lowers = getattr(tokenizer, "do_lower_case", False)
    assert bool(lowers) is known.lowers


@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_class_with_rules_of_its_own_has_no_tokenizer_json(name: str) -> None:
    import_torchvision()
    from transformers import TokenizersBackend

    if name == "RoFormerTokenizer":  # splits Chinese words in Python all the same
        return
    assert not issubclass(class_of(name), TokenizersBackend)


def test_model_types_have_their_class() -> None:
    import_torchvision()
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    for name, model_types in MODEL_TYPES.items():
        for model_type in model_types:
            if model_type == "qwen2":  # its files' class is known to be wrong
                continue
            assert TOKENIZER_MAPPING_NAMES[model_type] == name, model_type
    assert GENERIC in MODEL_TYPES


BERT_NORMALIZERS = [name for name, row in CLASSES.items() if row.model == "WordPiece"]
AS_IT_IS = ["ConvBertTokenizer", "FNetTokenizer", "RetriBertTokenizer"]
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] <s> </s> <pad> <unk> <mask> <cls> <sep> hello"


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(
    "name", [*BERT_NORMALIZERS, *READS_CASE, *FIXED_CASE, *AS_IT_IS]
)
def test_a_class_makes_small_letters_as_in_transformers(
    tmp_path: Path, name: str, in_file: bool
) -> None:
    """With and without ``do_lower_case``, and whatever ``tokenizer.json`` says."""
    import_torchvision()
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import AutoTokenizer

    numbers = {word: number for number, word in enumerate(WORDS.split())}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=in_file)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    text = tokenizer.to_str()
    (tmp_path / "tokenizer.json").write_text(text)
    for setting in (None, False, True):
        config: dict[str, Any] = {"tokenizer_class": name}
        if setting is not None:
            config["do_lower_case"] = setting
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        reference = AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer
        expected = json.loads(reference.to_str())["normalizer"]["lowercase"]
        settings = TokenizerSettings(name, setting)
        changed = json.loads(with_class_settings(text, settings))
        assert changed["normalizer"]["lowercase"] is expected, setting
