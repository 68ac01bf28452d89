"""The post-processor of a ``tokenizer.json``: the special tokens around a text and around a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pocketserve.tasks.text.tokens import Special

MAX_PARTS = 64  # of a template; BERT's pair has five
_SEQUENCES = ("A", "B")


class UnsupportedProcessorError(ValueError):
    """A post-processor that is not supported; the text names the part."""


class _Part(NamedTuple):
    """A part of a template: a text of the request, or a special token."""

    sequence: str  # ``A`` or ``B``; empty for a special token
    number: int
    type: int


class _Template(NamedTuple):
    """A template, split at its texts."""

    special: tuple[tuple[int, ...], ...]  # before, between and behind the texts
    types: tuple[int, ...]  # of all parts


def special_of(processor: object) -> Special:
    """Return the special tokens that a post-processor adds.

    Raises:
        UnsupportedProcessorError: it is none of the ``tokenizers`` library's, or its single texts can't be encoded.
            If only its pairs can't, ``pair_fault`` says why.
    """
    kind, content = _only_processor(processor)
    if kind == "":
        return Special(pair_types=(0, 0))
    if kind == "TemplateProcessing":
        return _of_template(content)
    cls, sep = (_number_of(content, key) for key in ("cls", "sep"))
    if kind == "BertProcessing":
        return Special((cls,), (sep,), (sep,))
    return Special((cls,), (sep, sep), (sep,), pair_types=(0,) * 6)


def _only_processor(processor: object) -> tuple[str, Mapping[str, Any]]:
    """Return the kind and content of the processor that adds tokens; an empty kind if there is none."""
    if processor is None:
        return "", {}
    if not isinstance(processor, dict):
        raise UnsupportedProcessorError("post_processor is no object")
    kind = processor.get("type")
    if kind == "ByteLevel":  # changes offsets only
        return "", {}
    if kind in ("TemplateProcessing", "BertProcessing", "RobertaProcessing"):
        return kind, processor
    if kind != "Sequence":
        raise UnsupportedProcessorError(f"post_processor.type = {str(kind)!r:.60}")
    inner = processor.get("processors")
    if not isinstance(inner, list) or len(inner) > MAX_PARTS:
        raise UnsupportedProcessorError("post_processor.processors is no list")
    adding = [
        part
        for part in inner
        if not (isinstance(part, dict) and part.get("type") == "ByteLevel")
    ]
    if len(adding) > 1:
        raise UnsupportedProcessorError(
            "post_processor.processors has several that add tokens"
        )
    return _only_processor(adding[0]) if adding else ("", {})


def _number_of(content: Mapping[str, Any], key: str) -> int:
    pair = content.get(key)
    if not isinstance(pair, list) or len(pair) != 2 or not _is_number(pair[1]):
        raise UnsupportedProcessorError(f"post_processor.{key} has no number")
    number: int = pair[1]
    return number


def _of_template(content: Mapping[str, Any]) -> Special:
    tokens = content.get("special_tokens")
    numbers = tokens if isinstance(tokens, dict) else {}
    single = _template(_parts(content.get("single"), numbers), ("A",), "single")
    first, last = single.special
    special = Special(first, last=last, single_types=single.types)
    try:
        pair = _template(_parts(content.get("pair"), numbers), _SEQUENCES, "pair")
    except UnsupportedProcessorError as error:
        return special._replace(pair_fault=str(error))
    if (first, last) != (pair.special[0], pair.special[2]):
        return special._replace(
            pair_fault="post_processor.pair begins or ends unlike post_processor.single"
        )
    return special._replace(middle=pair.special[1], pair_types=pair.types)


def _parts(template: object, numbers: Mapping[str, Any]) -> list[_Part]:
    if not isinstance(template, list) or len(template) > MAX_PARTS:
        raise UnsupportedProcessorError("post_processor has no template")
    parts: list[_Part] = []
    for part in template:
        kind, content = (
            next(iter(part.items()))
            if isinstance(part, dict) and len(part) == 1
            else ("", {})
        )
        token_type = content.get("type_id") if isinstance(content, dict) else None
        if kind not in ("Sequence", "SpecialToken") or type(token_type) is not int:
            raise UnsupportedProcessorError(
                "post_processor has a template with unknown parts"
            )
        name = content.get("id")
        if kind == "Sequence":
            parts.append(_Part(str(name), -1, token_type))
            continue
        token = numbers.get(name) if isinstance(name, str) else None
        ids = token.get("ids") if isinstance(token, dict) else None
        if (
            not isinstance(ids, list)
            or not ids
            or len(ids) > MAX_PARTS
            or not all(map(_is_number, ids))
        ):
            raise UnsupportedProcessorError(
                f"post_processor.special_tokens lacks {str(name)!r:.60}"
            )
        parts.extend(_Part("", number, token_type) for number in ids)
    return parts


def _template(parts: Sequence[_Part], sequences: Sequence[str], name: str) -> _Template:
    if tuple(part.sequence for part in parts if part.sequence) != tuple(sequences):
        raise UnsupportedProcessorError(
            f"post_processor.{name} has its texts in another order"
        )
    groups: list[list[int]] = [[]]
    for part in parts:
        if part.sequence:
            groups.append([])
        else:
            groups[-1].append(part.number)
    return _Template(tuple(map(tuple, groups)), tuple(part.type for part in parts))


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31
