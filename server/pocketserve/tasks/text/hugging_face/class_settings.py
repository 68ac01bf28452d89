"""Parts of ``tokenizer.json`` that a tokenizer's class builds anew from ``tokenizer_config.json``.

Source: huggingface/transformers 5.24, ``models/*/tokenization_*.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pocketserve.tasks.model_facts import MetadataError
from pocketserve.tasks.text.hugging_face.tokenizer_classes import CLASSES, READS_CASE
from pocketserve.tasks.text.hugging_face.tokenizer_settings import TokenizerSettings

_BYTE_LEVEL: Final = (
    *("Bart", "Cohere", "Deberta", "GPT2", "GPTNeoX", "LED", "Longformer", "Luke"),
    *("Mvp", "Qwen2", "Roberta"),
)
"""Classes that split bytes by ``add_prefix_space``; DeBERTa V2 splits no bytes."""

_METASPACE: Final = {
    "Albert": "never",
    "Barthez": "never",
    "BigBird": "never",
    "Camembert": "never",
    "DebertaV2": "first",
    "RemBert": "never",
    "XLMRoberta": "never",
}
"""The ``prepend_scheme`` of classes whose ``add_prefix_space`` is false."""

_LOWERCASE: Final = ("Albert", "DebertaV2", "XLNet")
"""Classes that put small letters into a sequence of normalizers by ``do_lower_case``."""


_UNKNOWN: Final = {
    "BigBirdTokenizer": "<unk>",
    "CamembertTokenizer": "<unk>",
    "DebertaV2Tokenizer": "[UNK]",
}
"""The default ``unk_token`` of classes that find its number in the vocabulary."""

_MODEL_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "WordPiece": {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    "BPE": {"byte_fallback": False, "dropout": None, "ignore_merges": False},
}
"""Options of the algorithms in classes, whatever ``tokenizer.json`` says."""


def with_class_settings(text: str, settings: TokenizerSettings) -> str:
    """Return ``tokenizer.json`` as the class of the settings changes it."""
    if not settings.of_bert_class or not settings.tokenizer_class:
        return text
    document = json.loads(text)
    apply_class_settings(document, settings)
    return json.dumps(document)


def apply_class_settings(document: dict[str, Any], settings: TokenizerSettings) -> None:
    """Change a parsed ``tokenizer.json`` as the class of the settings does."""
    if not settings.of_bert_class or not settings.tokenizer_class:
        return
    _set_model_options(document.get("model"), settings)
    for part in _parts(document.get("pre_tokenizer"), "pretokenizers"):
        _set_prefix_space(part, settings)
    normalizer = document.get("normalizer")
    for part in _parts(normalizer, "normalizers"):
        if part.get("type") == "BertNormalizer":
            _set_bert_normalizer(part, settings)
    if isinstance(normalizer, dict) and settings.tokenizer_class.startswith(_LOWERCASE):
        document["normalizer"] = _with_case(normalizer, settings)


def _set_model_options(model: object, settings: TokenizerSettings) -> None:
    """Set the options of the classes of WordPiece, and of those that split bytes."""
    if not isinstance(model, dict):
        return
    name = settings.tokenizer_class
    rules = CLASSES.get(name)
    kind = "WordPiece" if name in READS_CASE else rules and rules.model
    unknown = settings.names.get("unk", _UNKNOWN.get(name))
    if kind == "WordPiece":
        model |= _MODEL_OPTIONS[kind]
        if unknown is not None:
            model["unk_token"] = unknown
    elif rules is not None and "ByteLevel" in rules.steps:
        model |= _MODEL_OPTIONS["BPE"]
    elif name in _UNKNOWN and unknown is not None:
        _reject_other_unknown(model, unknown)


def _reject_other_unknown(model: Mapping[str, Any], unknown: str) -> None:
    """Raise if a class replaces unknown pieces by another token than the file."""
    vocabulary = model.get("vocab")
    number = model.get("unk_id")
    if not isinstance(vocabulary, list) or type(number) is not int:
        return
    piece = vocabulary[number : number + 1]
    if piece and isinstance(piece[0], list) and piece[0][:1] != [unknown]:
        raise MetadataError(
            f"tokenizer_config.json beside the model has unk_token = {unknown!r:.40}, "
            "which is not the token of model.unk_id in tokenizer.json; correct it"
        )


def _parts(part: object, key: str) -> Iterator[dict[str, Any]]:
    """Yield a part and those of a sequence."""
    if not isinstance(part, dict):
        return
    yield part
    inner = part.get(key)
    for item in inner if isinstance(inner, list) else ():
        if isinstance(item, dict):
            yield item


def _set_prefix_space(part: dict[str, Any], settings: TokenizerSettings) -> None:
    name = settings.tokenizer_class
    if part.get("type") == "ByteLevel" and name.startswith(_BYTE_LEVEL):
        part["add_prefix_space"] = settings.prefix_space is True
    if part.get("type") != "Metaspace":
        return
    for prefix, scheme in _METASPACE.items():
        if name.startswith(prefix):
            adds = settings.prefix_space is not False
            part["prepend_scheme"] = "always" if adds else scheme
            part.pop("add_prefix_space", None)


def _set_bert_normalizer(part: dict[str, Any], settings: TokenizerSettings) -> None:
    if settings.case_of_class is not None:
        part["lowercase"] = settings.case_of_class
    name = settings.tokenizer_class
    if name == "HerbertTokenizer":
        part |= {"strip_accents": False, "handle_chinese_chars": True}
    else:
        part["strip_accents"] = settings.strip_accents
        part["handle_chinese_chars"] = settings.cjk is not False
    part["clean_text"] = name != "FunnelTokenizer" or settings.cleans is not False


def _with_case(
    normalizer: dict[str, Any], settings: TokenizerSettings
) -> dict[str, Any]:
    """Return a normalizer that makes small letters only if ``do_lower_case`` says so."""
    inner = normalizer.get("normalizers")
    parts = inner if isinstance(inner, list) else [normalizer]
    lowers = {"type": "Lowercase"} in parts
    if lowers == bool(settings.case_of_class):
        return normalizer
    if settings.case_of_class:
        parts = [{"type": "Lowercase"}, *parts]
    else:
        parts = [part for part in parts if part != {"type": "Lowercase"}]
    return {"type": "Sequence", "normalizers": parts}
