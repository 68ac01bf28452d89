"""The parts of protobuf that requests and small models need."""

from __future__ import annotations


def field(number: int, content: bytes | str | int) -> bytes:
    """A field of a protobuf message."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    encoded = content
    if isinstance(content, str):
        encoded = content.encode()
    return _varint(number << 3 | 2) + _varint(len(encoded)) + encoded


def fields(message: bytes) -> dict[int, bytes]:
    """Return the last bytes field of each number."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        length, at = _read_varint(message, at)
        if key & 7 == 2:
            found[key >> 3] = message[at : at + length]
            at += length
    return found


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
        shift += 7
