"""A reader for FlatBuffers from strangers: every offset is checked against the buffer's end.

The FlatBuffers package for Python checks nothing, so the few kinds of field in use are read here. Many fields may
share one table, so that a small file can describe a huge tree: a budget bounds the work, whatever the shape. Nesting
is bounded by the callers, which follow a schema and never recurse. Source: "FlatBuffers internals", flatbuffers.dev.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator
from typing import TypeVar

from pocketserve.formats import BoundedReader, DamagedFileError

MAX_VECTOR = 1 << 20
"""Elements of one vector: no description in the wild comes near it."""

MAX_STRING_BYTES = 1 << 18
"""A description may hold a whole text; this is a long one."""

BUDGET = 200_000
"""Steps that reading one buffer may take; a field costs one, and long ones more."""

_T = TypeVar("_T")


class FlatBuffer(BoundedReader):
    """A FlatBuffer. Every read is checked against its end, and paid from a budget.

    Raises:
        DamagedFileError: from all methods, when an offset leads outside or the budget is spent.
    """

    def __init__(self, data: bytes | mmap.mmap, identifier: bytes, budget: int = BUDGET) -> None:
        super().__init__(data, budget)
        if bytes(self.slice(4, 4)) != identifier:
            raise DamagedFileError(f"file identifier {identifier.decode()} is missing")

    def root(self) -> FlatTable:
        """The table that all others hang on."""
        return FlatTable(self, self.follow(0))

    def number(self, code: str, at: int) -> int:
        """The integer at a position; ``code`` is one of struct's."""
        value: int = struct.unpack(f"<{code}", self.slice(at, struct.calcsize(f"<{code}")))[0]
        return value

    def follow(self, at: int) -> int:
        """Return where the offset at a position leads, which is always forward."""
        offset = self.number("I", at)
        if offset == 0:
            raise DamagedFileError("an offset leads to itself")
        return at + offset

    def slice(self, at: int, size: int) -> bytes:
        """A copy of bytes, all of which lie inside."""
        if at < 0 or size < 0 or at + size > len(self.data):
            raise DamagedFileError("an offset leads out of the file")
        self.pay(1 + size // 16)
        return self.data[at : at + size]

    def vector(self, at: int, itemsize: int, maximum: int) -> tuple[int, int]:
        """Return where a vector's elements begin, and their count, all of which lie inside."""
        count = self.number("I", at)
        if count > maximum or at + 4 + count * itemsize > len(self.data):
            raise DamagedFileError(f"a vector claims {count} elements")
        return at + 4, count


class FlatTable:
    """A table in a buffer. Fields are asked for by number; missing ones have their default.

    Raises:
        DamagedFileError: from all methods, as from :class:`FlatBuffer`.
    """

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - buffer.number("i", at)
        self._fields_size = buffer.number("H", self._fields)
        if self._fields_size < 4 or self._fields_size % 2:
            raise DamagedFileError("a table's field list has an impossible size")

    def integer(self, number: int, code: str, default: int = 0) -> int:
        """An integer; ``code`` is one of struct's."""
        at = self._field(number)
        return default if at is None else self._buffer.number(code, at)

    def real(self, number: int) -> float:
        """A 32-bit real number, finite."""
        at = self._field(number)
        return 0.0 if at is None else _floats(self._buffer.slice(at, 4))[0]

    def choice(self, number: int, names: tuple[str, ...]) -> str:
        """An enumeration's name; ``unknown`` for values of newer schemas."""
        value = self.integer(number, "b")
        return names[value] if 0 <= value < len(names) else "unknown"

    def table(self, number: int) -> FlatTable | None:
        """A table; None where there is none."""
        at = self._field(number)
        return None if at is None else FlatTable(self._buffer, self._buffer.follow(at))

    def text(self, number: int) -> str:
        """A text; empty where there is none."""
        at = self._field(number)
        return "" if at is None else _text(self._buffer, self._buffer.follow(at))

    def blob(self, number: int, maximum: int) -> bytes:
        """A copy of a vector of bytes, ``maximum`` of them at most."""
        start, count = self._vector(number, 1, maximum)
        return self._buffer.data[start : start + count]

    def extent(self, number: int) -> int:
        """Bytes in a vector of bytes, which all lie inside."""
        return self._vector(number, 1, len(self._buffer.data))[1]

    def integers(self, number: int, code: str = "I") -> tuple[int, ...]:
        """A vector of 32-bit integers."""
        start, count = self._vector(number, 4, MAX_VECTOR)
        return struct.unpack(f"<{count}{code}", self._buffer.slice(start, 4 * count))

    def reals(self, number: int) -> tuple[float, ...]:
        """A vector of 32-bit real numbers, all finite."""
        start, count = self._vector(number, 4, MAX_VECTOR)
        return _floats(self._buffer.slice(start, 4 * count))

    def texts(self, number: int) -> tuple[str, ...]:
        """A vector of texts."""
        return tuple(_text(self._buffer, at) for at in self._followed(number))

    def tables(self, number: int, read: Callable[[FlatTable], _T]) -> tuple[_T, ...]:
        """Return what ``read`` makes of each table in a vector of tables."""
        return tuple(read(FlatTable(self._buffer, at)) for at in self._followed(number))

    def element(self, number: int, position: int) -> FlatTable | None:
        """One table out of a vector of tables; None where the vector is shorter."""
        start, count = self._vector(number, 4, len(self._buffer.data))
        return FlatTable(self._buffer, self._buffer.follow(start + 4 * position)) if position < count else None

    def _followed(self, number: int) -> Iterator[int]:
        start, count = self._vector(number, 4, MAX_VECTOR)
        return (self._buffer.follow(start + 4 * position) for position in range(count))

    def _vector(self, number: int, itemsize: int, maximum: int) -> tuple[int, int]:
        at = self._field(number)
        return (0, 0) if at is None else self._buffer.vector(self._buffer.follow(at), itemsize, maximum)

    def _field(self, number: int) -> int | None:
        slot = 4 + 2 * number
        offset = self._buffer.number("H", self._fields + slot) if slot < self._fields_size else 0
        return self._at + offset if offset else None


def _text(buffer: FlatBuffer, at: int) -> str:
    start, size = buffer.vector(at, 1, MAX_STRING_BYTES)
    return buffer.slice(start, size).decode("utf-8", errors="replace")


def _floats(raw: bytes) -> tuple[float, ...]:
    values: tuple[float, ...] = struct.unpack(f"<{len(raw) // 4}f", raw)
    if not all(map(math.isfinite, values)):
        raise DamagedFileError("a number is infinite or not a number")
    return values
