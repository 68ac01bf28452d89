"""Decode base64 files of programs that only send JSON or text.

Sources of the forms: TensorFlow Serving's ``{"b64": ...}``, data URLs (RFC 2397), base64
(RFC 4648, both alphabets).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.cancellation import SMALL_DOCUMENT, hold_bytes
from pocketserve_wire import ApiError
from pocketserve_wire.strict_json import json_type

DATA_URL: Final = "data:"
MAX_URL_HEAD: Final = 256  # characters in front of a data URL's content
MAX_INPUTS: Final = 64  # files in one request
# Keys in which clients of TensorFlow Serving wrap the files.
ENVELOPES: Final = ("instances", "inputs")
MEDIA_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "picture": ("b64", "data", "file", "image", "picture"),
    "sound": ("b64", "data", "file", "audio", "sound"),
}
"""By the kind of file: its keys in JSON, and its names as a form field."""

_BASE64_START = re.compile(rb"[A-Za-z0-9+/_-]{32}")
_STANDARD_ALPHABET = bytes.maketrans(b"-_", b"+/")
_WHITE_SPACE = b" \t\r\n\v\f"
_ESCAPES: Final[Mapping[bytes, bytes]] = {
    b"%2B": b"+",
    b"%2b": b"+",
    b"%2F": b"/",
    b"%2f": b"/",
    b"%3D": b"=",
    b"%3d": b"=",
    b"%20": b"",
    b"%09": b"",
    b"%0A": b"",
    b"%0a": b"",
    b"%0D": b"",
    b"%0d": b"",
}
"""Characters that programs percent-encode in a data URL's base64."""

_COPIES = 5  # of a text, at most, while it is decoded


def hold_encoded(size: int) -> None:
    """Hold the memory that decoding a base64 text takes.

    Args:
        size: of the text in bytes.
    """
    if size > SMALL_DOCUMENT:
        hold_bytes(_COPIES * size)


def decode_base64(text: str | bytes) -> bytes:
    """Decode base64 in either alphabet, with or without padding.

    White space is skipped.

    Raises:
        ValueError: it is not base64.
    """
    if isinstance(text, str):
        text = text.encode("ascii")
    # One pass without a list: a text may be mostly white space.
    compact = text.translate(_STANDARD_ALPHABET, _WHITE_SPACE)
    if not compact.endswith(b"="):
        compact += b"=" * (-len(compact) % 4)
    if len(compact) % 4 or compact.endswith(b"==="):
        raise ValueError("its length is not that of base64")
    return binascii.a2b_base64(compact, strict_mode=True)


def is_base64_start(start: bytes) -> bool:
    """Return whether a body may be base64, not a file."""
    return _BASE64_START.match(start) is not None


def base64_hint(body: memoryview) -> str:
    """Return the right form for a base64 body; empty for other bodies."""
    if not is_base64_start(bytes(body[:32])):
        return ""
    return '; it looks like base64; send JSON, {"b64": "..."}, or text/plain'


def decode_file(text: str, location: str) -> bytes:
    """Decode a file from base64 or a data URL.

    Raises:
        ApiError: INVALID_INPUT, with the ``location`` of the text.
    """
    content = text
    has_head = is_data_url(text)
    if has_head:
        head, comma, content = text.partition(",")
        is_base64 = head[:MAX_URL_HEAD].rstrip().lower().endswith(";base64")
        if not comma or not is_base64 or len(head) > MAX_URL_HEAD:
            raise invalid_input(
                f"{location} is a data URL without base64; send data:image/png;base64,... or the like"
            )
    try:
        encoded = content.encode("ascii")
        if has_head:
            encoded = _without_escapes(encoded)
        return decode_base64(encoded)
    except ValueError:
        raise invalid_input(f"{location} is not base64") from None


def _without_escapes(content: bytes) -> bytes:
    """Replace percent-encoded characters.

    ``urllib.parse.unquote`` takes fifteen times the size of a text of escapes.
    """
    if b"%" in content:
        for escape, character in _ESCAPES.items():
            content = content.replace(escape, character)
    return content


def is_data_url(text: str) -> bool:
    """Return whether a text starts as a data URL does."""
    return text[: len(DATA_URL)].lower() == DATA_URL


class FilesInJson(NamedTuple):
    """The files in a JSON document.

    Attributes:
        is_list: whether the document has a list of files, even of a single one.
    """

    files: list[bytes]
    is_list: bool


def files_in_json(value: Any, media: str, names: Collection[str] = ()) -> FilesInJson:
    """Decode the files in a JSON document.

    Args:
        media: ``picture`` or ``sound``.
        names: further keys that may hold a file: the model's input.

    Raises:
        ApiError: INVALID_INPUT.
    """
    keys = (*MEDIA_KEYS[media], *names)
    for envelope in ENVELOPES:
        if isinstance(value, dict) and envelope in value and len(value) == 1:
            value = value[envelope]
    value = _unwrap(value, keys, media)
    if not isinstance(value, list):
        return FilesInJson([_file(value, keys, media)], False)
    if not 0 < len(value) <= MAX_INPUTS:
        raise invalid_input(
            f"a request may have 1 to {MAX_INPUTS} files, and this one has {len(value)}"
        )
    return FilesInJson([_file(item, keys, media) for item in value], True)


def _file(value: Any, keys: Collection[str], media: str) -> bytes:
    content = _unwrap(value, keys, media)
    if not isinstance(content, str):
        raise _unreadable(f"got {json_type(content)}", media)
    return decode_file(content, f"the {media}")


def _unwrap(value: Any, keys: Collection[str], media: str) -> Any:
    """Return the text or list in objects such as ``{"image": {"b64": ...}}``."""
    while isinstance(value, dict):
        unknown = [key for key in value if key not in keys]
        if unknown:
            raise _unreadable(
                f"unknown key {unknown[0]!r:.80}, parameters belong in the query",
                media,
            )
        if len(value) != 1:
            raise _unreadable(f"got {len(value)} keys", media)
        (value,) = value.values()
    return value


def _unreadable(fault: str, media: str) -> ApiError:
    return invalid_input(
        f'JSON for this model is a {media} in base64, {{"b64": "..."}}: {fault}'
    )
