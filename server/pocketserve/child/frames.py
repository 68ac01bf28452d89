"""Frames over pipes between a process and its child.

A frame has two unsigned 32-bit little-endian lengths, a JSON object of the first length
and a payload of the second.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LENGTHS = struct.Struct("<II")
CHUNK_BYTES = 1 << 20


class FrameError(ValueError):
    """A frame is too large or no JSON object."""


class ChildFrame(NamedTuple):
    """A received frame."""

    header: dict[str, Any]
    payload: bytearray


class FramePipe:
    """Reads and writes frames, with optional deadlines on the monotonic clock.

    Calls raise TimeoutError at the deadline, BrokenPipeError or another OSError if the
    other process has ended, and FrameError.
    """

    def __init__(
        self, reader: int, writer: int, max_header: int, max_payload: int = 0
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._max_header = max_header
        self._max_payload = max_payload
        os.set_blocking(writer, False)

    def exchange(
        self,
        header: Mapping[str, Any],
        payload: Sequence[memoryview] = (),
        deadline: float | None = None,
    ) -> ChildFrame:
        """Send a frame and receive the answer."""
        self.send(header, payload, deadline)
        return self.receive(deadline)

    def send(
        self,
        header: Mapping[str, Any],
        payload: Sequence[memoryview] = (),
        deadline: float | None = None,
    ) -> None:
        """Write a frame."""
        text = json.dumps(header).encode()
        size = sum(part.nbytes for part in payload)
        if len(text) > self._max_header or size > self._max_payload:
            raise FrameError(f"a frame of {len(text)} + {size} bytes is too large")
        self._write(memoryview(LENGTHS.pack(len(text), size) + text), deadline)
        for part in payload:
            self._write(part, deadline)

    def receive(self, deadline: float | None = None) -> ChildFrame:
        """Read a frame."""
        header_size, size = LENGTHS.unpack(self._read(LENGTHS.size, deadline))
        if not 0 < header_size <= self._max_header or size > self._max_payload:
            raise FrameError(f"a frame of {header_size} + {size} bytes was announced")
        try:
            header = json.loads(self._read(header_size, deadline))
        except ValueError as error:
            raise FrameError(f"a frame has no JSON: {error}") from error
        if not isinstance(header, dict):
            raise FrameError("a frame has no JSON object")
        return ChildFrame(header, self._read(size, deadline))

    def can_read(self, timeout_s: float) -> bool:
        """Wait for the first bytes, or the end, of the other process's output."""
        try:
            _await(self._reader, select.POLLIN, time.monotonic() + timeout_s)
        except TimeoutError:
            return False
        return True

    def _write(self, data: memoryview, deadline: float | None) -> None:
        while data.nbytes:
            _await(self._writer, select.POLLOUT, deadline)
            data = data[os.write(self._writer, data) :]

    def _read(self, count: int, deadline: float | None) -> bytearray:
        data = bytearray()
        while len(data) < count:
            _await(self._reader, select.POLLIN, deadline)
            chunk = os.read(self._reader, min(count - len(data), CHUNK_BYTES))
            if not chunk:
                raise BrokenPipeError
            data += chunk
        return data


def _await(descriptor: int, event: int, deadline: float | None) -> None:
    """Wait for a descriptor; raise TimeoutError at the deadline."""
    poll = select.poll()
    poll.register(descriptor, event)
    timeout_ms = None
    if deadline is not None:
        timeout_ms = max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(timeout_ms):
        raise TimeoutError
