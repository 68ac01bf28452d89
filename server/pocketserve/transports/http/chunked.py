"""Bodies in chunks (RFC 9112, section 7.1): time and memory are linear in their bytes.

waitress's receiver joins the pieces of an unfinished line anew with each that comes, and waits for ever for what is no
chunk.
"""

from __future__ import annotations

import re
from typing import Final

from waitress.utilities import BadRequest, Error, RequestEntityTooLarge

from pocketserve.transports.http.body import BodyFile

MAX_LINE: Final = 4096
"""Bytes of a chunk's size with its extensions, which nobody here reads."""

MAX_TRAILERS: Final = 16 * 1024
"""Bytes of all fields behind the last chunk, which nobody here reads either."""

_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")


class ChunkedBody:
    """Takes a body in, in the place of waitress's ``ChunkedReceiver``.

    Args:
        limit: bytes of the body from which it is refused.

    Attributes:
        completed: whether all of it is here.
        error: what is wrong with it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._memory = bytearray()
        self._line = bytearray()
        self._left = 0
        self._trailers = -1  # bytes of them so far; none before the last chunk
        self._ends_chunk = False
        self.completed = False
        self.error: Error | None = None

    def __len__(self) -> int:
        return len(self._memory)

    def received(self, data: bytes) -> int:
        """Take bytes, which may be followed by others that are not of this body; returns how many were taken."""
        taken = 0
        while taken < len(data) and not self.completed and self.error is None:
            if self._left:
                part = data[taken : taken + self._left]
                self._memory += part
                self._left -= len(part)
                taken += len(part)
            else:
                taken = self._take_line(data, taken)
        return taken

    def _take_line(self, data: bytes, start: int) -> int:
        end = data.find(b"\n", start) + 1 or len(data)
        self._line += data[start:end]
        if self._ends_chunk and not b"\r\n".startswith(self._line):
            self.error = BadRequest("Chunk not properly terminated")
        elif len(self._line) > MAX_LINE:
            self.error = BadRequest(f"a line between chunks has more than {MAX_LINE} bytes")
        elif self._line.endswith(b"\n"):
            line = bytes(self._line)
            self._line.clear()
            self._read_line(line)
        return end

    def _read_line(self, line: bytes) -> None:
        if self._trailers >= 0:
            self._read_trailer(line)
        elif self._ends_chunk:
            self._ends_chunk = False
        else:
            self._read_size(line)

    def _read_size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            self.error = BadRequest("Invalid chunk size")
            return
        self._left = int(match[1], 16)
        if not self._left:
            self._trailers = 0
        elif len(self._memory) + self._left >= self._limit:
            self.error = RequestEntityTooLarge(f"exceeds max_body of {self._limit}")
        self._ends_chunk = self._left > 0

    def _read_trailer(self, line: bytes) -> None:
        self._trailers += len(line)
        self.completed = line == b"\r\n"
        if not line.endswith(b"\r\n"):
            self.error = BadRequest("Bare LF found in a trailer")
        elif self._trailers > MAX_TRAILERS:
            self.error = BadRequest(f"the trailers have more than {MAX_TRAILERS} bytes")

    def getfile(self) -> BodyFile:
        """For ``wsgi.input``, once it is completed."""
        return BodyFile(memoryview(self._memory))

    def getbuf(self) -> ChunkedBody:
        """Return what waitress closes when the request was answered."""
        return self

    def close(self) -> None:
        """Let go of the memory; whoever looks at it still keeps it."""
        self._memory = bytearray()
