"""Build FlatBuffers by hand."""

from __future__ import annotations

import struct


class Flat:
    """Builds a FlatBuffer: positions are reserved first, and set later."""

    def __init__(self, identifier: bytes) -> None:
        self.data = bytearray(4) + identifier

    def table(self, *fields: int) -> dict[int, int]:
        """Reserve a table with these 4-byte fields and return their positions.

        Key -1 is the table's own position.
        """
        slots = [0] * (max(fields, default=-1) + 1)
        for place, number in enumerate(fields):
            slots[number] = 4 + 4 * place
        listed = len(self.data)
        self.data += struct.pack(
            f"<HH{len(slots)}H", 4 + 2 * len(slots), 4 + 4 * len(fields), *slots
        )
        at = len(self.data)
        self.data += struct.pack("<i", at - listed) + bytes(4 * len(fields))
        return {-1: at} | {
            number: at + 4 + 4 * place for place, number in enumerate(fields)
        }

    def vector(self, count: int, itemsize: int = 4) -> int:
        self.data += struct.pack("<I", count) + bytes(count * itemsize)
        return len(self.data) - 4 - count * itemsize

    def blob(self, content: bytes) -> int:
        self.data += struct.pack("<I", len(content)) + content
        return len(self.data) - 4 - len(content)

    def point(self, at: int, target: int) -> None:
        self.data[at : at + 4] = struct.pack("<I", target - at)

    def set(self, at: int, value: int) -> None:
        self.data[at : at + 4] = struct.pack("<I", value)
