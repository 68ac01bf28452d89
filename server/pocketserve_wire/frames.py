"""Frames of the socket protocol: their header, and what each type may carry.

``android_bridge/PROTOCOL.md`` is normative. All numbers are little-endian. A frame is a header of 24 bytes, then
target, extensions and body; the body is byte for byte what the same message has over HTTP.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .faults import ConnectionFault, ConnectionFaultError

MARK: Final = b"OI"
HEADER: Final = struct.Struct("<2sBBIIHHII")
"""mark, type, flags, request_id, arg, target_len, ext_len, json_len, body_len."""

HEADER_BYTES: Final = HEADER.size
MAX_TARGET_BYTES: Final = 1024
MAX_EXT_BYTES: Final = 4096
MAX_HANDSHAKE_BYTES: Final = 4096
"""A whole frame of the handshake: what a stranger can make the other side hold."""
MAX_NOTICE_BYTES: Final = 65_536
"""The body of GOAWAY, of ERROR, and of a frame that is skipped."""
FIRST_SKIPPED_TYPE: Final = 0x80
"""Types from here on are skipped by those who do not know them."""

LOWEST_STATUS: Final = 200
HIGHEST_STATUS: Final = 599

_EXT_HEAD = struct.Struct("<BH")
_U32 = struct.Struct("<I")
MAX_CONTENT_TYPE_BYTES: Final = 128
# No line breaks: a gateway may copy it into an HTTP header.
_CONTENT_TYPE = re.compile(rb"[ -~]{1,%d}" % MAX_CONTENT_TYPE_BYTES)


class FrameType(enum.IntEnum):
    """What a frame is."""

    HELLO = 0x01
    CHALLENGE = 0x02
    AUTH = 0x03
    READY = 0x04
    REQUEST = 0x10
    RESPONSE = 0x11
    CANCEL = 0x20
    PING = 0x30
    PONG = 0x31
    GOAWAY = 0x40
    ERROR = 0x41


class Extension(enum.IntEnum):
    """Tags of the extensions of version 1; bit 7 marks one that must be understood."""

    RETRY_AFTER_MS = 1
    CONTENT_TYPE = 2


CRITICAL: Final = 0x80
_REQUEST = int(FrameType.REQUEST)

_KNOWN = frozenset(FrameType)
_WITH_ID = frozenset({FrameType.REQUEST, FrameType.RESPONSE, FrameType.CANCEL, FrameType.GOAWAY})
_WITH_ARG = frozenset(
    {FrameType.REQUEST, FrameType.RESPONSE, FrameType.PING, FrameType.PONG, FrameType.GOAWAY, FrameType.ERROR}
)
_WITH_EXT = frozenset({FrameType.REQUEST, FrameType.RESPONSE, FrameType.GOAWAY, FrameType.ERROR})
_EMPTY = frozenset({FrameType.CANCEL, FrameType.PING, FrameType.PONG})
_ONLY_JSON = frozenset(
    {FrameType.HELLO, FrameType.CHALLENGE, FrameType.AUTH, FrameType.READY, FrameType.GOAWAY, FrameType.ERROR}
)


class Header(NamedTuple):
    """The fixed 24 bytes in front of every frame.

    Attributes:
        type: a :class:`FrameType`, or the number of a type to skip.
        request_id: the request it belongs to; 0 where it belongs to the connection.
        arg: milliseconds left in a REQUEST, the status in a RESPONSE, a reason, or what PING wants back.
        json_length: bytes of JSON at the body's start.
    """

    type: int
    request_id: int
    arg: int
    target_length: int
    ext_length: int
    json_length: int
    body_length: int

    @property
    def payload_length(self) -> int:
        """Bytes of the frame behind its header."""
        return self.target_length + self.ext_length + self.body_length


@dataclass(slots=True)
class Frame:
    """One whole frame.

    Attributes:
        target: of a REQUEST, such as ``b"POST /v2/models/m/infer"``.
        ext: extensions by tag, critical bit included.
        body: what followed; empty when ``discarded``.
        discarded: the body was too much to keep and was thrown away.
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
    """Read a header and check all that it can be checked for without knowing who sent it and when.

    Args:
        offset: where it starts in the buffer.

    Raises:
        ConnectionFaultError: BAD_MARK, UNKNOWN_FRAME, BAD_FRAME, BAD_REQUEST_ID or FRAME_TOO_LARGE.
    """
    mark, kind, flags, request_id, arg, target, ext, json_length, body = HEADER.unpack_from(buffer, offset)
    if mark != MARK:
        raise ConnectionFaultError(ConnectionFault.BAD_MARK, "a frame must start with the bytes 4f 49")
    # Header(...) would do the same in three times as long.
    header = tuple.__new__(Header, (kind, request_id, arg, target, ext, json_length, body))
    # A good REQUEST, which is what a server reads all day, is told by one comparison of numbers after the other.
    plain = kind == _REQUEST and not flags and request_id and json_length <= body
    if not (plain and 0 < target <= MAX_TARGET_BYTES and ext <= MAX_EXT_BYTES):
        _check_header(header, flags)
    return header


def _check_header(header: Header, flags: int) -> None:
    kind = header.type
    if kind < FIRST_SKIPPED_TYPE and kind not in _KNOWN:
        raise ConnectionFaultError(ConnectionFault.UNKNOWN_FRAME, f"unknown frame type 0x{kind:02x}")
    if flags:
        raise _bad(f"flags must be 0 in version 1, not 0x{flags:02x}")
    if kind >= FIRST_SKIPPED_TYPE:
        return _check_skipped(header)
    _check_id(header)
    if header.arg and kind not in _WITH_ARG:
        raise _bad(f"arg must be 0 in {FrameType(kind).name}")
    if kind == FrameType.RESPONSE and not LOWEST_STATUS <= header.arg <= HIGHEST_STATUS:
        raise _bad(f"the status of a RESPONSE must lie between {LOWEST_STATUS} and {HIGHEST_STATUS}, not {header.arg}")
    _check_lengths(header)
    return None


def _check_skipped(header: Header) -> None:
    if header.target_length:
        raise _bad("target_len must be 0 in a frame that is no REQUEST")
    if header.ext_length > MAX_EXT_BYTES:
        raise _bad(f"ext_len {header.ext_length} exceeds {MAX_EXT_BYTES}")
    if header.json_length > header.body_length:
        raise _bad("json_len exceeds body_len")
    if header.body_length > MAX_NOTICE_BYTES:
        raise ConnectionFaultError(
            ConnectionFault.FRAME_TOO_LARGE, f"a frame of unknown type may have {MAX_NOTICE_BYTES} bytes at most"
        )


def _check_id(header: Header) -> None:
    kind = header.type
    if kind not in _WITH_ID and header.request_id:
        raise ConnectionFaultError(
            ConnectionFault.BAD_REQUEST_ID, f"request_id must be 0 in {FrameType(kind).name}, which is no request's"
        )
    if kind in _WITH_ID and kind != FrameType.GOAWAY and not header.request_id:
        raise ConnectionFaultError(ConnectionFault.BAD_REQUEST_ID, f"{FrameType(kind).name} needs a request_id above 0")


def _check_lengths(header: Header) -> None:
    kind = FrameType(header.type)
    if kind is FrameType.REQUEST:
        if not 0 < header.target_length <= MAX_TARGET_BYTES:
            raise _bad(f"target_len must lie between 1 and {MAX_TARGET_BYTES}, not {header.target_length}")
    elif header.target_length:
        raise _bad("target_len must be 0 in a frame that is no REQUEST")
    if header.ext_length > (MAX_EXT_BYTES if kind in _WITH_EXT else 0):
        raise _bad(f"ext_len {header.ext_length} is too much for {kind.name}")
    if header.json_length > header.body_length:
        raise _bad("json_len exceeds body_len")
    if kind in _EMPTY and header.body_length:
        raise _bad(f"{kind.name} has no body")
    if kind in _ONLY_JSON:
        if header.json_length != header.body_length:
            raise _bad(f"json_len must equal body_len in {kind.name}")
        maximum = MAX_NOTICE_BYTES if kind in _WITH_EXT else MAX_HANDSHAKE_BYTES - HEADER_BYTES
        if header.body_length > maximum:
            raise ConnectionFaultError(
                ConnectionFault.FRAME_TOO_LARGE, f"the body of {kind.name} may have {maximum} bytes at most"
            )


def encode_header(header: Header) -> bytes:
    """The 24 bytes of a header."""
    return HEADER.pack(
        MARK,
        header.type,
        0,
        header.request_id,
        header.arg,
        header.target_length,
        header.ext_length,
        header.json_length,
        header.body_length,
    )


def encode_frame(frame: Frame) -> bytes:
    """A whole frame in one piece, for those that are small."""
    return encode_head(frame, len(frame.body)) + bytes(frame.body)


def encode_head(frame: Frame, body_length: int) -> bytes:
    """Header, target and extensions of a frame whose body is sent from where it lies."""
    ext = encode_ext(frame.ext) if frame.ext else b""
    head = HEADER.pack(
        MARK,
        frame.type,
        0,
        frame.request_id,
        frame.arg,
        len(frame.target),
        len(ext),
        frame.json_length,
        body_length,
    )
    return head + frame.target + ext


def json_frame(kind: FrameType, body: bytes, *, request_id: int = 0, arg: int = 0) -> bytes:
    """A whole frame whose body is one JSON document."""
    return encode_frame(Frame(kind, request_id=request_id, arg=arg, json_length=len(body), body=body))


def encode_ext(ext: Mapping[int, bytes]) -> bytes:
    """Extensions in their wire form: tag, length, value."""
    return b"".join(_EXT_HEAD.pack(tag, len(value)) + value for tag, value in ext.items())


def parse_ext(data: bytes | memoryview) -> dict[int, bytes]:
    """Extensions by tag.

    Raises:
        ConnectionFaultError: BAD_FRAME for lengths that do not add up, a tag that comes twice, or a known one with
            a value that it cannot have.
    """
    found: dict[int, bytes] = {}
    position = 0
    while position < len(data):
        if len(data) - position < _EXT_HEAD.size:
            raise _bad("the extensions end within a tag and length")
        tag, length = _EXT_HEAD.unpack_from(data, position)
        position += _EXT_HEAD.size
        if len(data) - position < length:
            raise _bad(f"extension {tag} is longer than what ext_len leaves for it")
        if tag in found:
            raise _bad(f"extension {tag} comes twice")
        found[tag] = bytes(data[position : position + length])
        position += length
    _check_known(found)
    return found


def _check_known(ext: Mapping[int, bytes]) -> None:
    retry = ext.get(Extension.RETRY_AFTER_MS)
    if retry is not None and len(retry) != _U32.size:
        raise _bad("extension 1 (retry_after_ms) must have 4 bytes")
    content_type = ext.get(Extension.CONTENT_TYPE)
    if content_type is not None and not _CONTENT_TYPE.fullmatch(content_type):
        raise _bad(f"extension 2 (content_type) must be printable ASCII of 1 to {MAX_CONTENT_TYPE_BYTES} bytes")


def retry_after_ms(ext: Mapping[int, bytes]) -> int | None:
    """Milliseconds after which trying again makes sense, if the answer says so."""
    value = ext.get(Extension.RETRY_AFTER_MS)
    return None if value is None else int(_U32.unpack(value)[0])


def encode_retry_after(milliseconds: int) -> bytes:
    """The value of the extension ``retry_after_ms``, at most 2**32 - 1."""
    return _U32.pack(min(max(0, milliseconds), 2**32 - 1))


def _bad(message: str) -> ConnectionFaultError:
    return ConnectionFaultError(ConnectionFault.BAD_FRAME, message)
