"""Bodies without copies: received into the memory that the model reads, sent from the memory that it wrote.

waitress would receive in pieces of 8 KiB, poll all connections before each, and copy everything twice.
"""

from __future__ import annotations

from typing import Final

from waitress.buffers import ReadOnlyFileBasedBuffer
from waitress.utilities import Error

from pocketserve_wire.limits import FIRST_BODY_BYTES, TENSOR_ALIGNMENT, grow

MAX_JOINED: Final = (
    64 * 1024
)  # bytes of a body that are copied behind its header, so that both are sent at once


class InPlaceData:
    """Stands in waitress's calls for bytes that are in :meth:`ReceivedBody.room` already."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class Body:
    """A body in memory, instead of waitress's receiver and its buffer; also its request's ``wsgi.input``."""

    error: Error | None = None
    completed = False
    _start = 0

    def __init__(self, size: int = 0) -> None:
        self._memory = bytearray(size)

    def getbuffer(self) -> memoryview:
        """Return all of it, not copied; writable, since TensorFlow Lite copies what is not."""
        return memoryview(self._memory)[self._start :]

    def getfile(self) -> Body:
        """Return the ``wsgi.input`` of a completed body."""
        return self

    def getbuf(self) -> Body:
        """Return the object that waitress closes when the request was answered."""
        return self

    def close(self) -> None:
        """Free the memory, unless a view of it exists."""
        self._memory = bytearray()


class ReceivedBody(Body):
    """Receives a body of known length. Memory grows with what has come, not with what was announced.

    Args:
        length: bytes, at least one.
        json_length: bytes in front of the tensors, which are aligned: frameworks copy others.
    """

    def __init__(self, length: int, json_length: int = 0) -> None:
        self._start = self._filled = -json_length % TENSOR_ALIGNMENT
        self._end = self._start + length
        self._memory = bytearray(min(self._end, FIRST_BODY_BYTES))

    def __len__(self) -> int:
        return self._filled - self._start

    def room(self) -> memoryview:
        """Return where the next bytes go; never empty before it is completed. Release it before any other call."""
        if len(self._memory) == self._filled:
            grow(self._memory, self._end)
        return memoryview(self._memory)[self._filled :]

    def received(self, data: bytes | InPlaceData) -> int:
        """Take bytes up to the body's end; return how many were taken."""
        if isinstance(data, InPlaceData):
            self._filled += len(data)
            self.completed = self._filled == self._end
            return len(data)
        start = 0
        while start < len(data) and not self.completed:
            with self.room() as room:
                part = memoryview(data)[start : start + len(room)]
                room[: len(part)] = part
            start += len(part)
            self._filled += len(part)
            self.completed = self._filled == self._end
        return start


class MemoryBuffer(ReadOnlyFileBasedBuffer):  # type: ignore[misc]  # waitress has no types
    """A part of an answer that waitress sends from where it is, as it does with files; nobody may change it."""

    def __init__(self, memory: memoryview) -> None:
        self._rest = memory

    def __len__(self) -> int:
        return len(self._rest)

    def get(self, numbytes: int, skip: bool = False) -> memoryview:
        return self._rest[:numbytes]

    def skip(self, numbytes: int, allow_prune: bool = False) -> None:
        self._rest = self._rest[numbytes:]

    def close(self) -> None:
        self._rest = memoryview(b"")
