"""A second, plain implementation of the wire format, to check the codec against.

Nothing here checks anything: vectors of broken frames are made by the same functions.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024
MAX_U32 = 2**32 - 1
DEFAULT_MAX_BODY = 64 * MIB

TYPES = {
    "HELLO": 0x01,
    "CHALLENGE": 0x02,
    "AUTH": 0x03,
    "READY": 0x04,
    "REQUEST": 0x10,
    "RESPONSE": 0x11,
    "PART": 0x12,
    "CANCEL": 0x20,
    "PING": 0x30,
    "PONG": 0x31,
    "GOAWAY": 0x40,
    "ERROR": 0x41,
}
REASONS = {
    "BAD_MARK": 1,
    "BAD_FRAME": 2,
    "UNEXPECTED_FRAME": 3,
    "FRAME_TOO_LARGE": 4,
    "BAD_REQUEST_ID": 5,
    "UNAUTHORIZED": 6,
    "UNSUPPORTED_VERSION": 7,
    "TIMEOUT": 8,
    "BAD_HANDSHAKE": 9,
    "TOO_MANY_CONNECTIONS": 10,
    "UNKNOWN_FRAME": 11,
    "SLOW_READER": 12,
    "INTERNAL": 13,
}


@dataclass
class Vector:
    """A vector: one pair of files.

    Attributes:
        folder: ``valid`` or ``invalid``.
        data: the content of NAME.bin.
        document: the content of NAME.json.
    """

    folder: str
    name: str
    data: bytes
    document: dict[str, Any]


@dataclass
class Piece:
    """A good frame of a vector: its content, and the fields a reader must find.

    Attributes:
        ext: tags and values in wire order.
        json_length: None when the whole body is JSON.
        discarded: the receiver must throw the body away.
        tensors: what an inference body holds.
    """

    type: str
    request_id: int = 0
    arg: int = 0
    target: str = ""
    ext: list[tuple[int, bytes]] = field(default_factory=list)
    body: bytes = b""
    json_length: int | None = None
    discarded: bool = False
    tensors: list[dict[str, Any]] | None = None

    def wire(self) -> bytes:
        """Return the frame's bytes."""
        json_length = len(self.body) if self.json_length is None else self.json_length
        return raw_frame(
            TYPES[self.type],
            request_id=self.request_id,
            arg=self.arg,
            target=self.target.encode("ascii"),
            ext=extensions(self.ext),
            body=self.body,
            json_length=json_length,
        )

    def expected(self) -> dict[str, Any]:
        """Return the entry of ``frames`` in NAME.json."""
        body = b"" if self.discarded else self.body
        facts: dict[str, Any] = {
            "type": TYPES[self.type],
            "name": self.type,
            "request_id": self.request_id,
            "arg": self.arg,
            "target": "" if self.discarded else self.target,
            "ext": []
            if self.discarded
            else [{"tag": tag, "value": value.hex()} for tag, value in self.ext],
            "json_length": len(self.body)
            if self.json_length is None
            else self.json_length,
            "body_length": len(body),
            "body_sha256": hashlib.sha256(body).hexdigest(),
            "discarded": self.discarded,
        }
        if self.tensors is not None:
            facts["tensors"] = self.tensors
        return facts


def raw_frame(
    kind: int,
    *,
    mark: bytes = b"OI",
    flags: int = 0,
    request_id: int = 0,
    arg: int = 0,
    target: bytes = b"",
    ext: bytes = b"",
    body: bytes = b"",
    target_length: int | None = None,
    ext_length: int | None = None,
    json_length: int | None = None,
    body_length: int | None = None,
) -> bytes:
    """Return any frame; a given length replaces the true one in the header."""
    return (
        mark
        + struct.pack("<BB", kind, flags)
        + struct.pack("<I", request_id)
        + struct.pack("<I", arg)
        + struct.pack("<H", len(target) if target_length is None else target_length)
        + struct.pack("<H", len(ext) if ext_length is None else ext_length)
        + struct.pack("<I", len(body) if json_length is None else json_length)
        + struct.pack("<I", len(body) if body_length is None else body_length)
        + target
        + ext
        + body
    )


def extensions(pairs: list[tuple[int, bytes]]) -> bytes:
    """Tag, length and value of each extension."""
    return b"".join(struct.pack("<BH", tag, len(value)) + value for tag, value in pairs)


def compact(value: Any) -> bytes:
    """Return compact ASCII JSON."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def error_body(text: str, code: str, **more: Any) -> bytes:
    """Return the body of an error, which is the same on both transports."""
    return compact({"error": text, "code": code, **more})


def frames_vector(
    name: str,
    description: str,
    rule: str,
    receiver: str,
    parts: list[Piece | bytes],
    *,
    awaits: str | None = None,
    max_body: int = DEFAULT_MAX_BODY,
) -> Vector:
    """Return a valid vector of frames; a part that is bytes is a frame to skip."""
    pieces = [part for part in parts if isinstance(part, Piece)]
    document: dict[str, Any] = {
        "kind": "frames",
        "description": description,
        "rule": rule,
    }
    document |= _state(receiver, awaits, max_body)
    document["canonical"] = len(pieces) == len(parts) and not any(
        piece.discarded for piece in pieces
    )
    document["frames"] = [piece.expected() for piece in pieces]
    data = b"".join(part.wire() if isinstance(part, Piece) else part for part in parts)
    return Vector("valid", name, data, document)


def fault_vector(
    name: str,
    description: str,
    rule: str,
    receiver: str,
    code: str,
    data: bytes,
    *,
    awaits: str | None = None,
    max_body: int = DEFAULT_MAX_BODY,
    good: int = 0,
    needs_all: bool = False,
    http: bool = False,
) -> Vector:
    """Return an invalid vector: ``good`` frames, then the fault."""
    document: dict[str, Any] = {
        "kind": "frames",
        "description": description,
        "rule": rule,
    }
    document |= _state(receiver, awaits, max_body)
    document |= {
        "code": code,
        "reason": REASONS[code],
        "good_frames": good,
        "needs_all": needs_all,
        "http": http,
    }
    return Vector("invalid", name, data, document)


def _state(receiver: str, awaits: str | None, max_body: int) -> dict[str, Any]:
    state: dict[str, Any] = {
        "receiver": receiver,
        "state": "handshake" if awaits else "ready",
    }
    if awaits:
        state["awaits"] = awaits
    return state | {"max_body": max_body}
