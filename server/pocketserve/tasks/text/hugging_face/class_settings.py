"""Parts of ``tokenizer.json`` that a tokenizer's class builds anew from ``tokenizer_config.json``.

Source: huggingface/transformers 5.24, ``models/*/tokenization_*.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pocketserve.tasks.text.hugging_face.tokenizer_settings import TokenizerSettings

_BYTE_LEVEL: Final = ("Roberta", "GPT2", "Bart", "Longformer", "LED", "Deberta")
"""Classes that split bytes by ``add_prefix_space``; DeBERTa V2 splits no bytes."""

_METASPACE: Final = {
    "Albert": "never",
    "BigBird": "never",
    "Camembert": "never",
    "DebertaV2": "first",
    "RemBert": "never",
    "XLMRoberta": "never",
}
"""The ``prepend_scheme`` of classes whose ``add_prefix_space`` is false."""

_LOWERCASE: Final = ("Albert", "DebertaV2", "XLNet")
"""Classes that put small letters into a sequence of normalizers by ``do_lower_case``."""


def with_class_settings(text: str, settings: TokenizerSettings) -> str:
    """Return ``tokenizer.json`` as the class of the settings changes it."""
    if not settings.of_bert_class or not settings.tokenizer_class:
        return text
    document = json.loads(text)
    for part in _parts(document.get("pre_tokenizer"), "pretokenizers"):
        _set_prefix_space(part, settings)
    normalizer = document.get("normalizer")
    for part in _parts(normalizer, "normalizers"):
        if part.get("type") == "BertNormalizer":
            _set_bert_normalizer(part, settings)
    if isinstance(normalizer, dict) and settings.tokenizer_class.startswith(_LOWERCASE):
        document["normalizer"] = _with_case(normalizer, settings)
    return json.dumps(document)


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
    if settings.prefix_space is None:
        return
    name = settings.tokenizer_class
    if part.get("type") == "ByteLevel" and name.startswith(_BYTE_LEVEL):
        part["add_prefix_space"] = settings.prefix_space
    if part.get("type") != "Metaspace":
        return
    for prefix, scheme in _METASPACE.items():
        if name.startswith(prefix):
            part["prepend_scheme"] = "always" if settings.prefix_space else scheme
            part.pop("add_prefix_space", None)


def _set_bert_normalizer(part: dict[str, Any], settings: TokenizerSettings) -> None:
    if settings.case_of_class is not None:
        part["lowercase"] = settings.case_of_class
    if settings.strip_accents is not None:
        part["strip_accents"] = settings.strip_accents
    if settings.cjk is not None:
        part["handle_chinese_chars"] = settings.cjk


def _with_case(
    normalizer: dict[str, Any], settings: TokenizerSettings
) -> dict[str, Any]:
    """Return a normalizer that makes small letters only if ``do_lower_case`` says so."""
    if settings.case_of_class is None:
        return normalizer
    inner = normalizer.get("normalizers")
    parts = inner if isinstance(inner, list) else [normalizer]
    lowers = {"type": "Lowercase"} in parts
    if lowers == settings.case_of_class:
        return normalizer
    if settings.case_of_class:
        parts = [{"type": "Lowercase"}, *parts]
    else:
        parts = [part for part in parts if part != {"type": "Lowercase"}]
    return {"type": "Sequence", "normalizers": parts}
