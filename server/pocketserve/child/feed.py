"""Write a child process's input, which may exceed a pipe's buffer."""

from __future__ import annotations

import os
from typing import IO


class PipeFeed:
    """Writes data into a pipe without blocking; closes it at the end.

    A child that reads no more is no error: its exit code tells the reason.
    """

    def __init__(self, pipe: IO[bytes], data: bytes) -> None:
        self._pipe = pipe
        self._data = memoryview(data)
        os.set_blocking(pipe.fileno(), False)

    def push(self) -> None:
        """Write as much as the pipe takes now."""
        if self._pipe.closed:
            return
        try:
            size = os.write(self._pipe.fileno(), self._data)
        except BlockingIOError:
            return
        except OSError:
            size = len(self._data)
        self._data = self._data[size:]
        if not self._data:
            self._pipe.close()
