"""A bounded reader of FlatBuffers: every offset is checked against the buffer's end.

Many fields may share one table, so that a small file can describe a huge tree: a budget bounds the work. Nesting is
bounded by the callers, which follow a schema and never recurse. Source: "FlatBuffers internals", flatbuffers.dev.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from typing import TypeVar

from pocketserve.formats import BoundedReader, DamagedFileError

MAX_VECTOR = 1 << 20  # elements of one vector: no description in the wild comes near it
MAX_STRING_BYTES = 1 << 18  # a description may hold a whole text; this is a long one
BUDGET = 200_000  # steps that reading one buffer may take; a field costs one, and long ones more

_T = TypeVar("_T")


class FlatBuffer(BoundedReader):
    """A FlatBuffer. All methods raise ``DamagedFileError`` where an offset leads outside or the budget is spent."""

    def __init__(
        self, data: bytes | mmap.mmap, identifier: bytes, budget: int = BUDGET
    ) -> None:
        super().__init__(data, budget)
        if bytes(self.slice(4, 4)) != identifier:
            raise DamagedFileError(f"file identifier {identifier.decode()} is missing")

    def root(self) -> FlatTable:
        """Return the table that leads to all others."""
        return FlatTable(self, self.follow(0))

    def number(self, code: str, at: int) -> int:
        """Return the integer at a position; ``code`` is one of struct's."""
        value: int = struct.unpack(
            f"<{code}", self.slice(at, struct.calcsize(f"<{code}"))
        )[0]
        return value

    def follow(self, at: int) -> int:
        """Return where the offset at a position leads, which is always forward."""
        offset = self.number("I", at)
        if offset == 0:
            raise DamagedFileError("an offset leads to itself")
        return at + offset

    def slice(self, at: int, size: int) -> bytes:
        """Return a copy of bytes, all of which lie inside."""
        if at < 0 or size < 0 or at + size > len(self.data):
            raise DamagedFileError("an offset leads out of the file")
        self.pay(1 + size // 16)
        return self.data[at : at + size]


class FlatTable:
    """A table in a buffer. Fields are read by number; missing ones have their default."""

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - buffer.number("i", at)
        self._fields_size = buffer.number("H", self._fields)
        if self._fields_size < 4 or self._fields_size % 2:
            raise DamagedFileError("a table's field list has an impossible size")

    def integer(self, number: int, code: str, default: int = 0) -> int:
        """Return an integer; ``code`` is one of struct's."""
        at = self._field(number)
        return default if at is None else self._buffer.number(code, at)

    def real(self, number: int) -> float:
        """Return a 32-bit real number, finite."""
        at = self._field(number)
        return 0.0 if at is None else _floats(self._buffer.slice(at, 4))[0]

    def choice(self, number: int, names: tuple[str, ...]) -> str:
        """Return an enumeration's name; ``unknown`` for values of newer schemas."""
        value = self.integer(number, "b")
        return names[value] if 0 <= value < len(names) else "unknown"

    def table(self, number: int) -> FlatTable | None:
        """Return a table; None where there is none."""
        at = self._field(number)
        return None if at is None else FlatTable(self._buffer, self._buffer.follow(at))

    def text(self, number: int) -> str:
        """Return a text; empty where there is none."""
        start, size = self._vector(number, 1, MAX_STRING_BYTES)
        return self._buffer.slice(start, size).decode("utf-8", errors="replace")

    def blob(self, number: int, maximum: int) -> bytes:
        """Return a copy of a vector of bytes, ``maximum`` of them at most."""
        start, count = self._vector(number, 1, maximum)
        return self._buffer.data[start : start + count]

    def extent(self, number: int) -> int:
        """Return the length of a vector of bytes, which all lie inside."""
        return self._vector(number, 1, len(self._buffer.data))[1]

    def integers(self, number: int, code: str = "I") -> tuple[int, ...]:
        """Return a vector of 32-bit integers."""
        start, count = self._vector(number, 4, MAX_VECTOR)
        return struct.unpack(f"<{count}{code}", self._buffer.slice(start, 4 * count))

    def reals(self, number: int) -> tuple[float, ...]:
        """Return a vector of 32-bit real numbers, all finite."""
        start, count = self._vector(number, 4, MAX_VECTOR)
        return _floats(self._buffer.slice(start, 4 * count))

    def tables(self, number: int, read: Callable[[FlatTable], _T]) -> tuple[_T, ...]:
        """Return what ``read`` makes of each table in a vector of tables."""
        start, count = self._vector(number, 4, MAX_VECTOR)
        offsets = range(start, start + 4 * count, 4)
        return tuple(
            read(FlatTable(self._buffer, self._buffer.follow(at))) for at in offsets
        )

    def element(self, number: int, position: int) -> FlatTable | None:
        """Return a table out of a vector of tables; None where the vector is shorter."""
        start, count = self._vector(number, 4, len(self._buffer.data))
        return (
            FlatTable(self._buffer, self._buffer.follow(start + 4 * position))
            if position < count
            else None
        )

    def _vector(self, number: int, itemsize: int, maximum: int) -> tuple[int, int]:
        """Return where a vector's elements begin, and their count, all of which lie inside."""
        field = self._field(number)
        if field is None:
            return 0, 0
        at = self._buffer.follow(field)
        count = self._buffer.number("I", at)
        if count > maximum or at + 4 + count * itemsize > len(self._buffer.data):
            raise DamagedFileError(f"a vector claims {count} elements")
        return at + 4, count

    def _field(self, number: int) -> int | None:
        slot = 4 + 2 * number
        offset = (
            self._buffer.number("H", self._fields + slot)
            if slot < self._fields_size
            else 0
        )
        return self._at + offset if offset else None


def _floats(raw: bytes) -> tuple[float, ...]:
    values: tuple[float, ...] = struct.unpack(f"<{len(raw) // 4}f", raw)
    if not all(map(math.isfinite, values)):
        raise DamagedFileError("a number is infinite or not a number")
    return values
