"""Read a request's texts, plain or in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pocketserve.tasks.arrays import first_sign
from pocketserve.tasks.base import Hints, invalid_input
from pocketserve.tasks.text.charsmap import LONE_SURROGATES
from pocketserve_wire import strict_json

MAX_TEXTS = 256
CHARSETS = frozenset(
    (
        "utf-8",
        "utf8",
        "us-ascii",
        "ascii",
        "iso-8859-1",
        "latin-1",
        "windows-1252",
        "utf-16",
    )
)
NULL = object()  # JSON's null, as None means "not JSON"
_CHAR_IN_JSON = 12  # most bytes of one character: two escapes such as \ud83d
_AROUND_TEXT = 256  # generous: bytes for a text's quotes, comma and indentation


class TextOrPair(NamedTuple):
    """A text, or a pair of texts that a model reads together."""

    text: str
    pair: str | None = None


def read_texts_or_pairs(
    body: memoryview, hints: Hints, limit: int
) -> tuple[list[TextOrPair], bool]:
    """Read like :func:`read_texts`, but accept pairs as well.

    A pair in JSON is ``{"text": ..., "text_pair": ...}``, or ``[text, other]`` in a list.
    """
    content = _json_of(body, hints, 2 * limit)
    entries = content if isinstance(content, list) else [content]
    if not any(_pair_of(entry) for entry in entries):
        texts, many = _texts_of(content, body, hints, limit)
        return [TextOrPair(text) for text in texts], many
    _check_count(entries)
    pairs = [_checked_entry(entry, limit) for entry in entries]
    return pairs, isinstance(content, list)


def _checked_entry(entry: Any, limit: int) -> TextOrPair:
    """Return an entry of a list of texts and pairs."""
    if isinstance(entry, str):
        return TextOrPair(checked_text(entry, limit))
    pair = _pair_of(entry)
    if pair is None:
        raise invalid_input(
            'each entry must be a text or a pair {"text": "...", "text_pair": "..."}'
        )
    return TextOrPair(checked_text(pair[0], limit), checked_text(pair[1], limit))


def _pair_of(entry: Any) -> tuple[str, str] | None:
    """Return the texts of a pair in JSON; None for anything else."""
    if isinstance(entry, dict) and entry.keys() == {"text", "text_pair"}:
        first = entry["text"]
        second = entry["text_pair"]
    elif isinstance(entry, list) and len(entry) == 2:
        first, second = entry
    else:
        return None
    if not isinstance(first, str) or not isinstance(second, str):
        return None
    return first, second


def read_texts(body: memoryview, hints: Hints, limit: int) -> tuple[list[str], bool]:
    """Return the texts of a body, and whether they were a list.

    JSON is a text in quotes, a list of texts or an object with ``text`` or ``texts``; other
    JSON is rejected. A body whose Content-Type is text is never parsed as JSON. Texts of
    more than ``limit`` characters are rejected.
    """
    return _texts_of(_json_of(body, hints, limit), body, hints, limit)


def _texts_of(
    content: Any, body: memoryview, hints: Hints, limit: int
) -> tuple[list[str], bool]:
    """Return the texts in JSON, or the body itself."""
    if content is None:
        return [_read_text(body, hints, limit)], False
    advice = "; with Content-Type text/plain it is a text"
    if _kind_of(hints) == "application/json":
        advice = ""
    return texts_in_json(content, limit, advice)


def _kind_of(hints: Hints) -> str:
    return hints.content_type.partition(";")[0].strip().casefold()


def _json_of(body: memoryview, hints: Hints, entry_chars: int) -> Any:
    """Return a body's JSON document; None if it is a text.

    Args:
        entry_chars: maximum characters of a list's entry.
    """
    kind = _kind_of(hints)
    if kind == "application/json":
        content = strict_json.loads(body)
        if content is None:
            return NULL
        return content
    if kind.startswith("text/") or first_sign(body[:64]) not in (b"[", b"{", b'"'):
        return None
    # Parsing a larger body would take many times its size in memory.
    if len(body) > MAX_TEXTS * (entry_chars * _CHAR_IN_JSON + _AROUND_TEXT):
        return None
    text = bytes(body)
    if strict_json.excess_of(text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def texts_in_json(content: Any, limit: int, advice: str = "") -> tuple[list[str], bool]:
    """Return a JSON document's texts, as :func:`read_texts` does.

    Args:
        advice: the end of the error message about other JSON.
    """
    if isinstance(content, dict) and len(content) == 1:
        content = content.get("texts", content.get("text", content))
    texts = content
    if isinstance(content, str):
        texts = [content]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise invalid_input(
            f'JSON for this model is a text, a list of texts or {{"text": "..."}}{advice}'
        )
    _check_count(texts)
    return [checked_text(text, limit) for text in texts], isinstance(content, list)


def _check_count(texts: Sequence[Any]) -> None:
    if not texts:
        raise invalid_input("the list of texts is empty")
    if len(texts) > MAX_TEXTS:
        raise invalid_input(
            f"the list has {len(texts)} texts, the limit is {MAX_TEXTS}"
        )


def read_object(
    body: memoryview, names: Sequence[str], limit: int
) -> Mapping[str, str]:
    """Return the texts of a JSON object by name."""
    example = "{" + ", ".join(f'"{name}": "..."' for name in names) + "}"
    if first_sign(body) != b"{":
        raise invalid_input(f"this model takes a JSON object: {example}")
    content = strict_json.loads_object(body)
    for key in content:
        if key not in names:
            raise invalid_input(f"unknown key {key!r:.80}; this model takes {example}")
    texts = {}
    for name in names:
        text = content.get(name)
        if not isinstance(text, str):
            raise invalid_input(
                f"the text {name!r} is missing; this model takes {example}"
            )
        texts[name] = checked_text(text, limit)
    return texts


def checked_text(text: str, limit: int) -> str:
    """Check length and content.

    Replace lone surrogates from JSON by U+FFFD.
    """
    if len(text) > limit:
        raise invalid_input(
            f"the text has {len(text)} characters, the limit is {limit} (text.max_chars in model.toml)"
        )
    if not text.strip():
        raise invalid_input("the text is empty")
    if text.isascii():
        return text
    return LONE_SURROGATES.sub("\ufffd", text)


def _read_text(body: memoryview, hints: Hints, limit: int) -> str:
    charset = _charset(hints.content_type)
    if len(body) > 4 * limit + 4:
        raise invalid_input(
            f"the text has more than {limit} characters (text.max_chars in model.toml)"
        )
    codec = charset
    if charset in ("utf-8", "utf8"):
        codec = "utf-8-sig"
    try:
        text = bytes(body).decode(codec)
    except UnicodeDecodeError as error:
        raise invalid_input(
            f"the text is not {charset.upper()} (byte {error.start}); send UTF-8, or name its charset in Content-Type"
        ) from None
    return checked_text(text, limit)


def _charset(content_type: str) -> str:
    for part in content_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().casefold() != "charset":
            continue
        charset = value.strip().strip('"').casefold()
        if charset not in CHARSETS:
            raise invalid_input(
                f"the charset {charset[:40]!r} is not supported; send UTF-8"
            )
        return charset
    return "utf-8"
