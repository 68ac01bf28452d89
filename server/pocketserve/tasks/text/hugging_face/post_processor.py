"""Read the special tokens of a ``tokenizer.json``'s post-processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pocketserve.tasks.text.tokens import Special

MAX_PARTS = 64  # of a template; BERT's pair has five
_SEQUENCES = ("A", "B")


class UnsupportedProcessorError(ValueError):
    """Report an unsupported post-processor.

    The text names the part.
    """


class _TemplatePart(NamedTuple):
    """A text or special token in a template."""

    sequence: str  # ``A`` or ``B``; empty for a special token
    number: int
    type: int


class _Template(NamedTuple):
    """A template, split at its texts."""

    special: tuple[tuple[int, ...], ...]  # before, between and after the texts
    types: tuple[int, ...]  # of all parts


def special_of(processor: object) -> Special:
    """Return the special tokens that a post-processor adds.

    Raises:
        UnsupportedProcessorError: its kind is unknown, or its single texts can't be encoded.
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
    """Return kind and content of the post-processor."""
    if processor is None or _is_byte_level(processor):
        return "", {}
    if not isinstance(processor, dict):
        raise UnsupportedProcessorError("post_processor is not an object")
    kind = processor.get("type")
    if kind in ("TemplateProcessing", "BertProcessing", "RobertaProcessing"):
        return kind, processor
    if kind != "Sequence":
        raise UnsupportedProcessorError(f"post_processor.type = {str(kind)!r:.60}")
    inner = processor.get("processors")
    if not isinstance(inner, list) or len(inner) > MAX_PARTS:
        raise UnsupportedProcessorError("post_processor.processors is not a list")
    adding = [part for part in inner if not _is_byte_level(part)]
    if len(adding) > 1:
        raise UnsupportedProcessorError(
            "post_processor.processors has several that add tokens"
        )
    return _only_processor(adding[0] if adding else None)


def _is_byte_level(processor: object) -> bool:
    """Return whether a processor only changes offsets."""
    return isinstance(processor, dict) and processor.get("type") == "ByteLevel"


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


def _parts(template: object, numbers: Mapping[str, Any]) -> list[_TemplatePart]:
    if not isinstance(template, list) or len(template) > MAX_PARTS:
        raise UnsupportedProcessorError("post_processor has no template")
    parts: list[_TemplatePart] = []
    for entry in template:
        kind, name, token_type = _read_entry(entry)
        if kind == "Sequence":
            parts.append(_TemplatePart(str(name), -1, token_type))
            continue
        for number in _special_numbers(numbers, name):
            parts.append(_TemplatePart("", number, token_type))
    return parts


def _read_entry(entry: object) -> tuple[str, object, int]:
    """Return kind, name and token type of a template's entry."""
    if isinstance(entry, dict) and len(entry) == 1:
        ((kind, content),) = entry.items()
        if kind in ("Sequence", "SpecialToken") and isinstance(content, dict):
            token_type = content.get("type_id")
            if type(token_type) is int:
                return kind, content.get("id"), token_type
    raise UnsupportedProcessorError("post_processor has a template with unknown parts")


def _special_numbers(numbers: Mapping[str, Any], name: object) -> list[int]:
    """Return the numbers of a special token, which may stand for several."""
    token = None
    if isinstance(name, str):
        token = numbers.get(name)
    ids = None
    if isinstance(token, dict):
        ids = token.get("ids")
    if not isinstance(ids, list) or not 0 < len(ids) <= MAX_PARTS:
        ids = [None]
    if not all(map(_is_number, ids)):
        raise UnsupportedProcessorError(
            f"post_processor.special_tokens lacks {str(name)!r:.60}"
        )
    return ids


def _template(
    parts: Sequence[_TemplatePart], sequences: Sequence[str], name: str
) -> _Template:
    if [part.sequence for part in parts if part.sequence] != list(sequences):
        raise UnsupportedProcessorError(
            f"post_processor.{name} has its texts in another order"
        )
    groups: list[list[int]] = [[]]
    for part in parts:
        if part.sequence:
            groups.append([])
        else:
            groups[-1].append(part.number)
    types = tuple(part.type for part in parts)
    return _Template(tuple(tuple(group) for group in groups), types)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31
