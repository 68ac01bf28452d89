"""A bounded reader of FlatBuffers.

Fields may share tables, so that a small file can describe a huge tree; a budget bounds
the work. Callers bound the nesting, because they follow a schema and don't recurse.
Source: "FlatBuffers internals", flatbuffers.dev.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from typing import TypeVar

from pocketserve.formats import BoundedReader, DamagedFileError

MAX_VECTOR = 1 << 20  # elements of one vector; real descriptions have far fewer
MAX_STRING_BYTES = 1 << 18  # a description may contain a long text
BUDGET = 200_000  # steps of reading one buffer; a field takes one, long ones take more

_T = TypeVar("_T")


class FlatBuffer(BoundedReader):
    """A FlatBuffer.

    Methods raise ``DamagedFileError`` for an offset outside the buffer, or if the
    budget is exhausted.
    """

    def __init__(
        self, data: bytes | mmap.mmap, identifier: bytes, budget: int = BUDGET
    ) -> None:
        super().__init__(data, budget)
        if bytes(self.slice(4, 4)) != identifier:
            raise DamagedFileError(f"file identifier {identifier.decode()} is missing")

    def root(self) -> FlatTable:
        """Return the root table."""
        return FlatTable(self, self.follow(0))

    def number(self, code: str, at: int) -> int:
        """Return the integer at a position; ``code`` is a ``struct`` code."""
        data = self.slice(at, struct.calcsize(f"<{code}"))
        value: int = struct.unpack(f"<{code}", data)[0]
        return value

    def follow(self, at: int) -> int:
        """Return the target of the offset at a position."""
        offset = self.number("I", at)
        if offset == 0:
            raise DamagedFileError("an offset points to itself")
        return at + offset

    def slice(self, at: int, size: int) -> bytes:
        """Return a copy of bytes within the buffer."""
        if at < 0 or size < 0 or at + size > len(self.data):
            raise DamagedFileError("an offset points outside the file")
        self.pay(1 + size // 16)
        return self.data[at : at + size]


class FlatTable:
    """A table in a buffer. Missing fields have default values."""

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - buffer.number("i", at)
        self._fields_size = buffer.number("H", self._fields)
        if self._fields_size < 4 or self._fields_size % 2:
            raise DamagedFileError("a table's field list has an impossible size")

    def integer(self, number: int, code: str, default: int = 0) -> int:
        """Return an integer; ``code`` is a ``struct`` code."""
        at = self._field(number)
        if at is None:
            return default
        return self._buffer.number(code, at)

    def real(self, number: int) -> float:
        """Return a finite 32-bit float."""
        at = self._field(number)
        if at is None:
            return 0.0
        return _floats(self._buffer.slice(at, 4))[0]

    def choice(self, number: int, names: tuple[str, ...]) -> str:
        """Return an enumeration's name; ``unknown`` for values of newer schemas."""
        value = self.integer(number, "b")
        if 0 <= value < len(names):
            return names[value]
        return "unknown"

    def table(self, number: int) -> FlatTable | None:
        """Return a table, or None."""
        at = self._field(number)
        if at is None:
            return None
        return FlatTable(self._buffer, self._buffer.follow(at))

    def text(self, number: int) -> str:
        """Return a string; empty if missing."""
        start, size = self._vector(number, 1, MAX_STRING_BYTES)
        return self._buffer.slice(start, size).decode("utf-8", errors="replace")

    def blob(self, number: int, maximum: int) -> bytes:
        """Return a copy of a vector of at most ``maximum`` bytes."""
        start, count = self._vector(number, 1, maximum)
        return self._buffer.data[start : start + count]

    def extent(self, number: int) -> int:
        """Return the length of a vector of bytes."""
        return self._vector(number, 1, len(self._buffer.data))[1]

    def integers(self, number: int, code: str = "I") -> tuple[int, ...]:
        """Return a vector of 32-bit integers."""
        start, count = self._vector(number, 4, MAX_VECTOR)
        return struct.unpack(f"<{count}{code}", self._buffer.slice(start, 4 * count))

    def reals(self, number: int) -> tuple[float, ...]:
        """Return a vector of finite 32-bit floats."""
        start, count = self._vector(number, 4, MAX_VECTOR)
        return _floats(self._buffer.slice(start, 4 * count))

    def tables(self, number: int, read: Callable[[FlatTable], _T]) -> tuple[_T, ...]:
        """Return the results of ``read`` for each table in a vector."""
        start, count = self._vector(number, 4, MAX_VECTOR)
        end = start + 4 * count
        results = []
        for at in range(start, end, 4):
            table = FlatTable(self._buffer, self._buffer.follow(at))
            results.append(read(table))
        return tuple(results)

    def element(self, number: int, position: int) -> FlatTable | None:
        """Return a table in a vector of tables, or None."""
        start, count = self._vector(number, 4, len(self._buffer.data))
        if position >= count:
            return None
        at = start + 4 * position
        return FlatTable(self._buffer, self._buffer.follow(at))

    def _vector(self, number: int, itemsize: int, maximum: int) -> tuple[int, int]:
        """Return the start and number of a vector's elements."""
        field = self._field(number)
        if field is None:
            return 0, 0
        at = self._buffer.follow(field)
        count = self._buffer.number("I", at)
        start = at + 4
        end = start + count * itemsize
        if count > maximum or end > len(self._buffer.data):
            raise DamagedFileError(f"a vector claims {count} elements")
        return start, count

    def _field(self, number: int) -> int | None:
        slot = 4 + 2 * number
        if slot >= self._fields_size:
            return None
        offset = self._buffer.number("H", self._fields + slot)
        if offset:
            return self._at + offset
        return None


def _floats(raw: bytes) -> tuple[float, ...]:
    """Return 32-bit numbers, all of them finite."""
    count = len(raw) // 4
    values: tuple[float, ...] = struct.unpack(f"<{count}f", raw)
    if not all(map(math.isfinite, values)):
        raise DamagedFileError("a number is infinite or not a number")
    return values
