"""The texts of a request: plain, or in JSON."""

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
NULL = object()  # JSON's null, which is no text
_CHAR_IN_JSON = 12  # bytes that one character may take: two escapes such as \ud83d
_AROUND_TEXT = 256  # bytes for a text's quotes, comma and indentation, generously


class TextOrPair(NamedTuple):
    """A text, or a pair of texts that a model reads together."""

    text: str
    pair: str | None = None


def read_texts_or_pairs(
    body: memoryview, hints: Hints, limit: int
) -> tuple[list[TextOrPair], bool]:
    """As :func:`read_texts`; JSON may also have pairs ``{"text": ..., "text_pair": ...}``, or ``[text, other]`` in a
    list.
    """
    content = _json_of(body, hints, 2 * limit)
    entries = content if isinstance(content, list) else [content]
    if not any(_pair_of(entry) for entry in entries):
        texts, many = _texts_of(content, body, hints, limit)
        return [TextOrPair(text) for text in texts], many
    _check_count(entries)
    pairs = []
    for entry in entries:
        pair = (entry, None) if isinstance(entry, str) else _pair_of(entry)
        if pair is None:
            raise invalid_input(
                'each entry must be a text or a pair {"text": "...", "text_pair": "..."}'
            )
        text, other = pair
        pairs.append(
            TextOrPair(
                checked_text(text, limit),
                None if other is None else checked_text(other, limit),
            )
        )
    return pairs, isinstance(content, list)


def _pair_of(entry: Any) -> tuple[str, str] | None:
    """Return the texts of a pair in JSON; None for anything else."""
    if isinstance(entry, dict) and entry.keys() == {"text", "text_pair"}:
        texts = [entry["text"], entry["text_pair"]]
    elif isinstance(entry, list) and len(entry) == 2:
        texts = entry
    else:
        return None
    return (
        (texts[0], texts[1]) if all(isinstance(text, str) for text in texts) else None
    )


def read_texts(body: memoryview, hints: Hints, limit: int) -> tuple[list[str], bool]:
    """Return one text, or the texts of a JSON list; and whether there were several to begin with.

    JSON is a text in quotes, a list of texts or an object with ``text`` or ``texts``; other JSON is refused. A body
    that is said to be text is never taken for JSON. A text of more than ``limit`` characters is refused.
    """
    return _texts_of(_json_of(body, hints, limit), body, hints, limit)


def _texts_of(
    content: Any, body: memoryview, hints: Hints, limit: int
) -> tuple[list[str], bool]:
    """Return the texts of a JSON document, or the body as one text where the document is None."""
    if (
        content is None
    ):  # as nobody said that it is JSON, it is a text, which may start with a bracket
        return [_read_text(body, hints, limit)], False
    is_declared = _kind_of(hints) == "application/json"
    return texts_in_json(
        content,
        limit,
        "" if is_declared else "; with Content-Type text/plain it is a text",
    )


def _kind_of(hints: Hints) -> str:
    return hints.content_type.partition(";")[0].strip().casefold()


def _json_of(body: memoryview, hints: Hints, entry_chars: int) -> Any:
    """Return a body's JSON document; None if it is a text.

    Args:
        entry_chars: characters of an entry of a list at most.
    """
    kind = _kind_of(hints)
    if kind == "application/json":
        content = strict_json.loads(body)
        return NULL if content is None else content
    if kind.startswith("text/") or first_sign(body[:64]) not in (b"[", b"{", b'"'):
        return None
    maximum = MAX_TEXTS * (
        entry_chars * _CHAR_IN_JSON + _AROUND_TEXT
    )  # parsing more would cost many times its memory
    text = bytes(body) if len(body) <= maximum else b""
    try:
        return None if not text or strict_json.excess_of(text) else json.loads(text)
    except (ValueError, RecursionError):
        return None


def texts_in_json(content: Any, limit: int, advice: str = "") -> tuple[list[str], bool]:
    """Return the texts of a JSON document as :func:`read_texts` does; ``advice`` ends the error about other JSON."""
    if isinstance(content, dict) and len(content) == 1:
        content = content.get("texts", content.get("text", content))
    texts = [content] if isinstance(content, str) else content
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        # Numbers, or texts by other names, are not to be read letter by letter.
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
    unknown = [name for name in content if name not in names]
    if unknown:
        raise invalid_input(
            f"unknown key {unknown[0]!r:.80}; this model takes {example}"
        )
    missing = [name for name in names if not isinstance(content.get(name), str)]
    if missing:
        raise invalid_input(
            f"the text {missing[0]!r} is missing; this model takes {example}"
        )
    return {name: checked_text(content[name], limit) for name in names}


def checked_text(text: str, limit: int) -> str:
    """Return a text with something in it, within the limit; halves of characters, as in JSON, become U+FFFD."""
    if len(text) > limit:
        raise invalid_input(
            f"the text has {len(text)} characters, the limit is {limit} (text.max_chars in model.toml)"
        )
    if not text.strip():
        raise invalid_input("the text is empty")
    return text if text.isascii() else LONE_SURROGATES.sub("\ufffd", text)


def _read_text(body: memoryview, hints: Hints, limit: int) -> str:
    charset = _charset(hints.content_type)
    if len(body) > 4 * limit + 4:
        raise invalid_input(
            f"the text has more than {limit} characters (text.max_chars in model.toml)"
        )
    try:
        text = bytes(body).decode(
            "utf-8-sig" if charset in ("utf-8", "utf8") else charset
        )
    except UnicodeDecodeError as error:
        raise invalid_input(
            f"the text is not {charset.upper()} (byte {error.start}); send UTF-8, or name its charset in Content-Type"
        ) from None
    return checked_text(text, limit)


def _charset(content_type: str) -> str:
    for part in content_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().casefold() == "charset":
            charset = value.strip().strip('"').casefold()
            if charset not in CHARSETS:
                raise invalid_input(
                    f"the charset {charset[:40]!r} is not known here; send UTF-8"
                )
            return charset
    return "utf-8"
