"""The texts of a request: plain, or in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.tasks.arrays import first_sign
from pocketserve.tasks.base import Hints, invalid_input
from pocketserve.tasks.text.charsmap import LONE_SURROGATES
from pocketserve_wire import strict_json

MAX_TEXTS = 256
CHARSETS = frozenset(("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "windows-1252", "utf-16"))
_CHAR_IN_JSON = 12  # bytes that one character may take: two escapes such as \ud83d
_AROUND_TEXT = 256  # bytes for a text's quotes, comma and indentation, generously


def read_texts(body: memoryview, hints: Hints, limit: int) -> tuple[list[str], bool]:
    """Return one text, or the texts of a JSON list; and whether there were several to begin with.

    JSON is a text in quotes, a list of texts or an object with ``text`` or ``texts``; other JSON is refused. A body
    that is said to be text is never taken for JSON. A text of more than ``limit`` characters is refused.
    """
    kind = hints.content_type.partition(";")[0].strip().casefold()
    if kind == "application/json":
        return texts_in_json(strict_json.loads(body), limit)
    if not kind.startswith("text/") and first_sign(body[:64]) in (b"[", b"{", b'"'):
        maximum = MAX_TEXTS * (limit * _CHAR_IN_JSON + _AROUND_TEXT)  # parsing more would cost many times its memory
        text = bytes(body) if len(body) <= maximum else b""
        try:
            content = None if not text or strict_json.excess_of(text) else json.loads(text)
        except (ValueError, RecursionError):
            content = None
        if content is not None:  # else, as nobody said that it is JSON, it is a text that starts with a bracket
            return texts_in_json(content, limit, "; with Content-Type text/plain it is a text")
    return [_read_text(body, hints, limit)], False


def texts_in_json(content: Any, limit: int, advice: str = "") -> tuple[list[str], bool]:
    """Return the texts of a JSON document as :func:`read_texts` does; ``advice`` ends the error about other JSON."""
    if isinstance(content, dict) and len(content) == 1:
        content = content.get("texts", content.get("text", content))
    texts = [content] if isinstance(content, str) else content
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        # Numbers, or texts by other names, are not to be read letter by letter.
        raise invalid_input(f'JSON for this model is a text, a list of texts or {{"text": "..."}}{advice}')
    if not texts:
        raise invalid_input("the list of texts is empty")
    if len(texts) > MAX_TEXTS:
        raise invalid_input(f"the list has {len(texts)} texts, the limit is {MAX_TEXTS}")
    return [checked_text(text, limit) for text in texts], isinstance(content, list)


def read_object(body: memoryview, names: Sequence[str], limit: int) -> Mapping[str, str]:
    """Return the texts of a JSON object by name."""
    example = "{" + ", ".join(f'"{name}": "..."' for name in names) + "}"
    if first_sign(body) != b"{":
        raise invalid_input(f"this model takes a JSON object: {example}")
    content = strict_json.loads_object(body)
    unknown = [name for name in content if name not in names]
    if unknown:
        raise invalid_input(f"unknown key {unknown[0]!r:.80}; this model takes {example}")
    missing = [name for name in names if not isinstance(content.get(name), str)]
    if missing:
        raise invalid_input(f"the text {missing[0]!r} is missing; this model takes {example}")
    return {name: checked_text(content[name], limit) for name in names}


def checked_text(text: str, limit: int) -> str:
    """Return a text with something in it, within the limit; halves of characters, as in JSON, become U+FFFD."""
    if len(text) > limit:
        raise invalid_input(f"the text has {len(text)} characters, the limit is {limit} (text.max_chars in model.toml)")
    if not text.strip():
        raise invalid_input("the text is empty")
    return text if text.isascii() else LONE_SURROGATES.sub("\ufffd", text)


def _read_text(body: memoryview, hints: Hints, limit: int) -> str:
    charset = _charset(hints.content_type)
    if len(body) > 4 * limit + 4:
        raise invalid_input(f"the text has more than {limit} characters (text.max_chars in model.toml)")
    try:
        text = bytes(body).decode("utf-8-sig" if charset in ("utf-8", "utf8") else charset)
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
                raise invalid_input(f"the charset {charset[:40]!r} is not known here; send UTF-8")
            return charset
    return "utf-8"
