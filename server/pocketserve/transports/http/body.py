"""Request and response bodies that are not copied.

A body is received into the memory that the model reads, and sent from the memory that
the model wrote.

waitress would receive pieces of 8 KiB, poll all connections before each, and copy
everything twice.
"""

from __future__ import annotations

from typing import Final

from waitress.buffers import ReadOnlyFileBasedBuffer
from waitress.utilities import Error

from pocketserve_wire.limits import FIRST_BODY_BYTES, TENSOR_ALIGNMENT, grow

MAX_JOINED: Final = 64 * 1024
"""Bytes of a body that are appended to its header, so that one call sends both."""


class InPlaceData:
    """A placeholder for bytes that are already in :meth:`ReceivedBody.room`."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class Body:
    """A request body in memory; also the request's ``wsgi.input``.

    It replaces waitress's receiver and buffer.
    """

    error: Error | None = None
    completed = False
    _start = 0

    def __init__(self, size: int = 0) -> None:
        self._memory = bytearray(size)

    def getbuffer(self) -> memoryview:
        """Return the whole body without a copy.

        It is writable: TensorFlow Lite copies read-only memory.
        """
        return memoryview(self._memory)[self._start :]

    def getfile(self) -> Body:
        """Return the ``wsgi.input`` of a completed body."""
        return self

    def getbuf(self) -> Body:
        """Return the object that waitress closes after the response."""
        return self

    def close(self) -> None:
        """Free the memory, unless a view of it exists."""
        self._memory = bytearray()


class ReceivedBody(Body):
    """Receives a body of known length.

    Memory grows with the received bytes, not with the announced length.

    Args:
        length: bytes, at least one.
        json_length: bytes before the tensors. Those are aligned in memory: frameworks
            copy others.
    """

    def __init__(self, length: int, json_length: int = 0) -> None:
        self._start = self._filled = -json_length % TENSOR_ALIGNMENT
        self._end = self._start + length
        self._memory = bytearray(min(self._end, FIRST_BODY_BYTES))

    def __len__(self) -> int:
        return self._filled - self._start

    def room(self) -> memoryview:
        """Return the memory for the next bytes.

        It is never empty before the body is complete. Release it before any other call.
        """
        if len(self._memory) == self._filled:
            grow(self._memory, self._end)
        return memoryview(self._memory)[self._filled :]

    def received(self, data: bytes | InPlaceData) -> int:
        """Consume bytes up to the body's end; return their number."""
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
    """A part of a response that waitress sends without a copy.

    waitress does so with files only. Nobody may change the memory.
    """

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
