"""Bodies without copies: received into the memory that the model reads, sent from the memory that it wrote.

waitress would receive in pieces of 8 KiB, look at all connections before each, and copy each twice more; and it would
copy twice what it sends.
"""

from __future__ import annotations

import io
from typing import Final

from waitress.buffers import ReadOnlyFileBasedBuffer

from pocketserve_wire.limits import FIRST_BODY_BYTES, GROWTH_BYTES, TENSOR_ALIGNMENT

MAX_JOINED: Final = 64 * 1024
"""Bytes of a body that are copied behind its header, so that both are sent at once."""


class Placed:
    """Stands for bytes that lie where :meth:`ReceivedBody.room` said, on their way through waitress's calls."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class BodyFile(io.RawIOBase):
    """A whole body as ``wsgi.input``: a stream for Flask, plain memory for the data plane."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._at = 0

    def getbuffer(self) -> memoryview:
        """All of it, not copied: TensorFlow Lite takes a tensor as it is only from memory that it might write to."""
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
    """Takes a body in, in the place of waitress's ``FixedStreamReceiver`` and its buffer.

    Memory grows with what has come, not with what was announced.

    Args:
        length: bytes, at least one.
        json_length: how many of them are in front of the tensors, which are aligned: frameworks copy others.

    Attributes:
        completed: whether all of it is here.
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
        """Return where the next bytes go; never empty before it is completed. Release it before anything else is
        called.
        """
        have = len(self._memory)
        if have == self._filled:
            step = max(FIRST_BODY_BYTES, min(have, max(GROWTH_BYTES, have // 4)))
            self._memory.extend(bytes(min(self._end - have, step)))
        return memoryview(self._memory)[self._filled :]

    def received(self, data: bytes | Placed) -> int:
        """Take bytes, which may be followed by others that are not of this body; returns how many were taken."""
        if isinstance(data, Placed):
            self._count(len(data))
            return len(data)
        taken = 0
        while taken < len(data) and not self.completed:
            with self.room() as room:
                part = memoryview(data)[taken : taken + len(room)]
                room[: len(part)] = part
            taken += len(part)
            self._count(len(part))
        return taken

    def _count(self, more: int) -> None:
        self._filled += more
        self.completed = self._filled == self._end

    def getfile(self) -> BodyFile:
        """For ``wsgi.input``, once it is completed."""
        return BodyFile(memoryview(self._memory)[self._start :])

    def getbuf(self) -> ReceivedBody:
        """Return what waitress closes when the request was answered."""
        return self

    def close(self) -> None:
        """Let go of the memory; whoever looks at it still keeps it."""
        self._memory = bytearray()


class Part(ReadOnlyFileBasedBuffer):  # type: ignore[misc]  # waitress has no types
    """A part of an answer that waits to be sent, as waitress takes files: it is read where it is.

    Args:
        memory: of bytes; nobody may change them.
    """

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
