"""Bodies without copies: received into the memory that the model reads, sent from the memory that it wrote.

waitress would receive in pieces of 8 KiB, poll all connections before each, and copy everything twice.
"""

from __future__ import annotations

import io
from typing import Final

from waitress.buffers import ReadOnlyFileBasedBuffer

from pocketserve_wire.limits import FIRST_BODY_BYTES, TENSOR_ALIGNMENT, grow

MAX_JOINED: Final = 64 * 1024
"""Bytes of a body that are copied behind its header, so that both are sent at once."""


class Placed:
    """Stands in waitress's calls for bytes that are in :meth:`ReceivedBody.room` already."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class BodyFile(io.RawIOBase):
    """A whole body as ``wsgi.input``."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._at = 0

    def getbuffer(self) -> memoryview:
        """Return all of it, not copied; writable, since TensorFlow Lite copies what is not."""
        return self._memory

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]  # which is what io hands over
        part = self._memory[self._at : self._at + len(into)]
        into[: len(part)] = part
        self._at += len(part)
        return len(part)

    def readall(self) -> bytes:
        rest = bytes(self._memory[self._at :])
        self._at = len(self._memory)
        return rest


class ReceivedBody:
    """Receives a body instead of waitress's ``FixedStreamReceiver`` and its buffer.

    Memory grows with what has come, not with what was announced.

    Args:
        length: bytes, at least one.
        json_length: bytes in front of the tensors, which are aligned: frameworks copy others.
    """

    error: Final = None

    def __init__(self, length: int, json_length: int = 0) -> None:
        self._start = self._filled = -json_length % TENSOR_ALIGNMENT
        self._end = self._start + length
        self._memory = bytearray(min(self._end, FIRST_BODY_BYTES))
        self.completed = False

    def __len__(self) -> int:
        return self._filled - self._start

    def room(self) -> memoryview:
        """Return where the next bytes go; never empty before it is completed. Release it before any other call."""
        if len(self._memory) == self._filled:
            grow(self._memory, self._end)
        return memoryview(self._memory)[self._filled :]

    def received(self, data: bytes | Placed) -> int:
        """Take bytes up to the body's end; return how many were taken."""
        if isinstance(data, Placed):
            self._count(len(data))
            return len(data)
        start = 0
        while start < len(data) and not self.completed:
            with self.room() as room:
                part = memoryview(data)[start : start + len(room)]
                room[: len(part)] = part
            start += len(part)
            self._count(len(part))
        return start

    def _count(self, more: int) -> None:
        self._filled += more
        self.completed = self._filled == self._end

    def getfile(self) -> BodyFile:
        """Return the ``wsgi.input`` of a completed body."""
        return BodyFile(memoryview(self._memory)[self._start :])

    def getbuf(self) -> ReceivedBody:
        """Return the object that waitress closes when the request was answered."""
        return self

    def close(self) -> None:
        """Free the memory, unless a view of it exists."""
        self._memory = bytearray()


class Part(ReadOnlyFileBasedBuffer):  # type: ignore[misc]  # waitress has no types
    """A part of an answer that waitress sends from where it is, as it does with files; nobody may change it."""

    def __init__(self, memory: memoryview) -> None:
        self._rest = memory

    def __len__(self) -> int:
        return len(self._rest)

    def get(self, numbytes: int = -1, skip: bool = False) -> memoryview:
        part = self._rest if numbytes < 0 else self._rest[:numbytes]
        if skip:
            self.skip(len(part))
        return part

    def skip(self, numbytes: int, allow_prune: bool = False) -> None:
        self._rest = self._rest[numbytes:]

    def close(self) -> None:
        self._rest = memoryview(b"")
