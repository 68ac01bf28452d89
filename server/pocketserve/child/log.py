"""Keep the end of a child process's output."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

MAX_BYTES = 1 << 20
KEPT_BYTES = 64 * 1024
"""Bytes that stay of a log larger than MAX_BYTES."""

CUT_ATTEMPTS = 8
"""Attempts to read a growing log before it is cut anyway."""


class ChildLog:
    """A file for a child's output, temporary without a path."""

    def __init__(self, path: Path | None = None) -> None:
        self.file: IO[bytes]
        if path is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        else:
            self.file = path.open("a+b")
        self._descriptor = self.file.fileno()
        # The child appends, so that the log can be cut while it writes.
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_APPEND)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def tail(self, size: int = KEPT_BYTES) -> str:
        """Return the last bytes as text."""
        end = self._size()
        data = os.pread(self._descriptor, size, max(0, end - size))
        return data.decode("utf-8", errors="replace")

    def last_line(self, size: int = 4096) -> str:
        """Return the last line that is not empty."""
        lines = self.tail(size).strip().splitlines()
        return lines[-1] if lines else ""

    def clear(self) -> None:
        """Drop everything."""
        os.ftruncate(self._descriptor, 0)

    def cut(self) -> None:
        """Drop all but the end if the log is too large.

        That is done between two writes of the child: a write during it would be lost,
        and it may be an important one.
        """
        if self._size() <= MAX_BYTES:
            return
        for _ in range(CUT_ATTEMPTS):
            size = self._size()
            end = self.tail().encode()
            if self._size() == size:
                break
        self.clear()
        os.write(self._descriptor, end)

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size
