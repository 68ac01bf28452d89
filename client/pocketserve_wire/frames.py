"""The frames of the socket protocol: header, and limits of each type.

``android_bridge/PROTOCOL.md`` is normative. All numbers are little-endian. A frame is a
header of 24 bytes, then target, extensions and body. The body equals the body of the
same message over HTTP.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .errors import ConnectionFault, ConnectionFaultError

MARK: Final = b"OI"
HEADER: Final = struct.Struct("<2sBBIIHHII")
"""mark, type, flags, request_id, arg, target_len, ext_len, json_len, body_len."""

HEADER_BYTES: Final = HEADER.size
MAX_TARGET_BYTES: Final = 1024
MAX_EXT_BYTES: Final = 4096
MAX_HANDSHAKE_BYTES: Final = 4096
"""A whole frame of the handshake, when the client is still unauthenticated."""
MAX_NOTICE_BYTES: Final = 65_536
"""The body of GOAWAY, of ERROR, and of a frame that is skipped."""
FIRST_SKIPPED_TYPE: Final = 0x80
"""Receivers skip frames of unknown types from this number on."""

LOWEST_STATUS: Final = 200
HIGHEST_STATUS: Final = 599

_EXT_HEAD = struct.Struct("<BH")
_U32 = struct.Struct("<I")
MAX_CONTENT_TYPE_BYTES: Final = 128
# No line breaks: a gateway may copy it into an HTTP header.
_CONTENT_TYPE = re.compile(rb"[ -~]{1,%d}" % MAX_CONTENT_TYPE_BYTES)


class FrameType(enum.IntEnum):
    """Frame types."""

    HELLO = 0x01
    CHALLENGE = 0x02
    AUTH = 0x03
    READY = 0x04
    REQUEST = 0x10
    RESPONSE = 0x11
    PART = 0x12
    CANCEL = 0x20
    PING = 0x30
    PONG = 0x31
    GOAWAY = 0x40
    ERROR = 0x41


class Extension(enum.IntEnum):
    """Tags of the extensions of version 1; bit 7 marks a critical extension."""

    RETRY_AFTER_MS = 1
    CONTENT_TYPE = 2


CRITICAL: Final = 0x80
MAX_CHUNKS: Final = 512  # per system call, which accepts at most 1,024
Chunk = bytes | memoryview
_REQUEST, _RESPONSE = int(FrameType.REQUEST), int(FrameType.RESPONSE)


class _Rule(NamedTuple):
    """Limits of a frame type.

    Attributes:
        request_id: True if required, False if it must be 0, None if optional.
        json_body: size limit of a body that is JSON only; None if other bytes may
            follow the JSON.
    """

    request_id: bool | None = False
    arg: bool = False
    ext: bool = False
    json_body: int | None = None


_HANDSHAKE = _Rule(json_body=MAX_HANDSHAKE_BYTES - HEADER_BYTES)
_EMPTY: Final = 0
_RULES: Final = {
    FrameType.HELLO: _HANDSHAKE,
    FrameType.CHALLENGE: _HANDSHAKE,
    FrameType.AUTH: _HANDSHAKE,
    FrameType.READY: _HANDSHAKE,
    FrameType.REQUEST: _Rule(request_id=True, arg=True, ext=True),
    FrameType.RESPONSE: _Rule(request_id=True, arg=True, ext=True),
    FrameType.PART: _Rule(request_id=True),
    FrameType.CANCEL: _Rule(request_id=True, json_body=_EMPTY),
    FrameType.PING: _Rule(arg=True, json_body=_EMPTY),
    FrameType.PONG: _Rule(arg=True, json_body=_EMPTY),
    FrameType.GOAWAY: _Rule(
        request_id=None, arg=True, ext=True, json_body=MAX_NOTICE_BYTES
    ),
    FrameType.ERROR: _Rule(arg=True, ext=True, json_body=MAX_NOTICE_BYTES),
}


class Header(NamedTuple):
    """The fixed 24 bytes in front of every frame.

    Attributes:
        type: a :class:`FrameType`, or the number of a type to skip.
        request_id: the frame's request; 0 for frames that concern the connection.
        arg: milliseconds left in a REQUEST, the status in a RESPONSE, a reason, or the
            value that PONG returns to PING.
        json_length: bytes of JSON at the body's start.
    """

    type: int
    request_id: int
    arg: int
    target_length: int
    ext_length: int
    json_length: int
    body_length: int


@dataclass(slots=True)
class Frame:
    """A whole frame.

    Attributes:
        target: of a REQUEST, such as ``b"POST /v2/models/m/infer"``.
        ext: extensions by tag, critical bit included.
        body: the payload's last part; empty when ``discarded``.
        discarded: the body was too large to keep and was dropped.
    """

    type: int
    request_id: int = 0
    arg: int = 0
    target: bytes = b""
    ext: Mapping[int, bytes] = field(default_factory=dict)
    json_length: int = 0
    body: bytes | memoryview = b""
    discarded: bool = False


def parse_header(buffer: bytes | bytearray | memoryview, offset: int = 0) -> Header:
    """Parse a header and check the limits that need no connection state.

    Args:
        offset: the header's position in the buffer.

    Raises:
        ConnectionFaultError: BAD_MARK, UNKNOWN_FRAME, BAD_FRAME, BAD_REQUEST_ID or
            FRAME_TOO_LARGE.
    """
    mark, kind, flags, request_id, arg, target, ext, json_length, body = (
        HEADER.unpack_from(buffer, offset)
    )
    if mark != MARK:
        raise ConnectionFaultError(
            ConnectionFault.BAD_MARK, "a frame must start with the bytes 4f 49"
        )
    # Header(...) takes three times as long.
    header = tuple.__new__(
        Header, (kind, request_id, arg, target, ext, json_length, body)
    )
    # Fast path: these comparisons accept every valid REQUEST and RESPONSE.
    if kind == _REQUEST:
        fits = 0 < target <= MAX_TARGET_BYTES
    else:
        fits = (
            kind == _RESPONSE and not target and LOWEST_STATUS <= arg <= HIGHEST_STATUS
        )
    if flags or not (
        fits and request_id and json_length <= body and ext <= MAX_EXT_BYTES
    ):
        _check_header(header, flags)
    return header


def _check_header(header: Header, flags: int) -> None:
    number = header.type
    skipped = number >= FIRST_SKIPPED_TYPE
    if not skipped and number not in _RULES:
        raise ConnectionFaultError(
            ConnectionFault.UNKNOWN_FRAME, f"unknown frame type 0x{number:02x}"
        )
    if flags:
        raise _bad(f"flags must be 0 in version 1, not 0x{flags:02x}")
    if skipped:
        _check_skipped(header)
    else:
        _check_known(header, FrameType(number))


def _check_skipped(header: Header) -> None:
    _check_lengths(header, MAX_EXT_BYTES, f"exceeds {MAX_EXT_BYTES}")
    if header.body_length > MAX_NOTICE_BYTES:
        raise frame_too_large(
            f"a frame of unknown type may have {MAX_NOTICE_BYTES} bytes at most"
        )


def _check_known(header: Header, kind: FrameType) -> None:
    rule = _RULES[kind]
    _check_id_and_arg(header, kind, rule)
    max_ext = MAX_EXT_BYTES if rule.ext else 0
    _check_lengths(header, max_ext, f"is too much for {kind.name}")
    if rule.json_body == _EMPTY and header.body_length:
        raise _bad(f"{kind.name} has no body")
    if rule.json_body:
        if header.json_length != header.body_length:
            raise _bad(f"json_len must equal body_len in {kind.name}")
        if header.body_length > rule.json_body:
            raise frame_too_large(
                f"the body of {kind.name} may have {rule.json_body} bytes at most"
            )


def _check_id_and_arg(header: Header, kind: FrameType, rule: _Rule) -> None:
    if header.request_id and rule.request_id is False:
        raise _bad_id(
            f"request_id must be 0 in {kind.name}, which is not about a request"
        )
    if rule.request_id and not header.request_id:
        raise _bad_id(f"{kind.name} needs a request_id above 0")
    if header.arg and not rule.arg:
        raise _bad(f"arg must be 0 in {kind.name}")
    if kind is FrameType.RESPONSE and not LOWEST_STATUS <= header.arg <= HIGHEST_STATUS:
        raise _bad(
            f"the status of a RESPONSE must be between {LOWEST_STATUS} and "
            f"{HIGHEST_STATUS}, not {header.arg}"
        )


def _check_lengths(header: Header, max_ext: int, excess: str) -> None:
    if header.type == _REQUEST:
        if not 0 < header.target_length <= MAX_TARGET_BYTES:
            raise _bad(
                f"target_len must be between 1 and {MAX_TARGET_BYTES}, not "
                f"{header.target_length}"
            )
    elif header.target_length:
        raise _bad("target_len must be 0 in frames other than REQUEST")
    if header.ext_length > max_ext:
        raise _bad(f"ext_len {header.ext_length} {excess}")
    if header.json_length > header.body_length:
        raise _bad("json_len exceeds body_len")


def encode_frame(frame: Frame) -> bytes:
    """Encode a whole frame in one piece; meant for small frames."""
    return encode_head(frame, len(frame.body)) + bytes(frame.body)


def encode_head(frame: Frame, body_length: int) -> bytes:
    """Encode header, target and extensions; the body is sent separately."""
    ext = encode_ext(frame.ext) if frame.ext else b""
    lengths = len(frame.target), len(ext), frame.json_length, body_length
    header = HEADER.pack(MARK, frame.type, 0, frame.request_id, frame.arg, *lengths)
    return header + frame.target + ext


def rest_of(chunks: Sequence[Chunk], sent: int) -> list[Chunk]:
    """Return the chunks after the first ``sent`` bytes, without a copy."""
    for index, chunk in enumerate(chunks):
        if sent < len(chunk):
            return [memoryview(chunk)[sent:], *chunks[index + 1 :]]
        sent -= len(chunk)
    return []


def json_frame(
    kind: FrameType, body: bytes, *, request_id: int = 0, arg: int = 0
) -> bytes:
    """Encode a frame whose body is one JSON document."""
    frame = Frame(kind, request_id, arg, json_length=len(body), body=body)
    return encode_frame(frame)


def encode_ext(ext: Mapping[int, bytes]) -> bytes:
    """Encode extensions: tag, length and value of each."""
    encoded = b""
    for tag, value in ext.items():
        encoded += _EXT_HEAD.pack(tag, len(value)) + value
    return encoded


def parse_ext(data: bytes | memoryview) -> dict[int, bytes]:
    """Parse extensions; return their values by tag.

    Raises:
        ConnectionFaultError: BAD_FRAME for inconsistent lengths, a repeated tag, or an
            invalid value of a known tag.
    """
    ext: dict[int, bytes] = {}
    position = 0
    while position < len(data):
        if len(data) - position < _EXT_HEAD.size:
            raise _bad("the extensions end within a tag or length")
        tag, length = _EXT_HEAD.unpack_from(data, position)
        position += _EXT_HEAD.size
        if len(data) - position < length:
            raise _bad(f"extension {tag} exceeds ext_len")
        if tag in ext:
            raise _bad(f"extension {tag} is repeated")
        ext[tag] = bytes(data[position : position + length])
        position += length
    _check_known_extensions(ext)
    return ext


def _check_known_extensions(ext: Mapping[int, bytes]) -> None:
    retry = ext.get(Extension.RETRY_AFTER_MS)
    if retry is not None and len(retry) != _U32.size:
        raise _bad("extension 1 (retry_after_ms) must have 4 bytes")
    content_type = ext.get(Extension.CONTENT_TYPE)
    if content_type is not None and not _CONTENT_TYPE.fullmatch(content_type):
        raise _bad(
            "extension 2 (content_type) must be printable ASCII of 1 to "
            f"{MAX_CONTENT_TYPE_BYTES} bytes"
        )


def encode_retry_after(milliseconds: int) -> bytes:
    """Encode the value of the extension ``retry_after_ms``, at most 2**32 - 1."""
    return _U32.pack(min(max(0, milliseconds), 2**32 - 1))


def frame_too_large(message: str) -> ConnectionFaultError:
    """Return the error for a frame with too many bytes."""
    return ConnectionFaultError(ConnectionFault.FRAME_TOO_LARGE, message)


def _bad(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(ConnectionFault.BAD_FRAME, message)


def _bad_id(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(ConnectionFault.BAD_REQUEST_ID, message)
