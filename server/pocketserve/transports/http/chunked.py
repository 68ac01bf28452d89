"""Chunked request bodies (RFC 9112, section 7.1).

Time and memory are linear.

waitress's receiver rejoins all pieces of an unfinished line with each new one, and waits
forever for an invalid chunk.
"""

from __future__ import annotations

import re
from typing import Final

from waitress.utilities import BadRequest, RequestEntityTooLarge

from pocketserve.transports.http.body import Body

MAX_LINE: Final = 4096  # bytes of a chunk's size with its extensions, which are ignored
# Bytes of all fields after the last chunk, which are ignored, too.
MAX_TRAILERS: Final = 16 * 1024
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,16})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")


class ChunkedBody(Body):
    """Receives a chunked body of less than ``limit`` bytes.

    It replaces waitress's ``ChunkedReceiver``.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._line = bytearray()
        self._left = 0
        self._trailers = -1  # bytes of them so far; none before the last chunk
        self._ends_chunk = False

    def __len__(self) -> int:
        return len(self._memory)

    def received(self, data: bytes) -> int:
        """Consume bytes up to the body's end; return their number."""
        start = 0
        while start < len(data) and not self.completed and self.error is None:
            if self._left:
                part = data[start : start + self._left]
                self._memory += part
                self._left -= len(part)
                start += len(part)
            else:
                start = self._take_line(data, start)
        return start

    def _take_line(self, data: bytes, start: int) -> int:
        end = data.find(b"\n", start) + 1 or len(data)
        self._line += data[start:end]
        if self._ends_chunk and not b"\r\n".startswith(self._line):
            self.error = BadRequest("Chunk not properly terminated")
        elif len(self._line) > MAX_LINE:
            self.error = BadRequest(
                f"a line between chunks has more than {MAX_LINE} bytes"
            )
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
