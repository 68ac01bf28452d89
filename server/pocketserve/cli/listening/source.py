"""Sources of recorded sound, and the buffer of sound to send."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final, Protocol

CHUNK_BYTES: Final = 1 << 16
POLL_S: Final = 0.2
"""How often a wait checks for the end, which a signal handler only notes."""

LEAST_S: Final = 0.5
"""Sound of one step: less would cost more requests, more would be late."""

LARGEST_S: Final = 5.0
END_S: Final = 10.0
"""Time for the rest of a recording that was stopped."""

BUFFERED_S: Final = 30.0
"""Sound that waits at most; then the source isn't read, so that a pipe's writer waits."""


@dataclass(frozen=True)
class SampleForm:
    """The form of raw samples, as the server's parameters name it.

    Attributes:
        width: bytes of a sample.
    """

    name: str
    width: int
    rate: int
    channels: int

    @property
    def frame_bytes(self) -> int:
        """Return the bytes of one sample of all channels."""
        return self.width * self.channels

    def size_of(self, seconds: float) -> int:
        """Return the bytes of some seconds, in whole frames."""
        return max(1, int(seconds * self.rate)) * self.frame_bytes


class SampleSource(Protocol):
    """A source of raw samples."""

    @property
    def form(self) -> SampleForm: ...

    def read(self) -> bytes:
        """Wait for samples and return them; empty at the end."""
        ...

    def stop(self) -> bool:
        """Record nothing more; return whether reading then comes to the end."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class SoundBuffer:
    """Reads a source on a thread of its own.

    Attributes:
        fault: why reading failed; None if it didn't.
    """

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._form = source.form
        self._bytes = bytearray()
        self._has_ended = False
        self._is_stopped = False
        self._end_by: float | None = None
        self._changed = threading.Condition()
        self.fault: Exception | None = None
        self._thread = threading.Thread(
            target=self._read, name="pocketserve-listen", daemon=True
        )
        self._thread.start()

    @property
    def size(self) -> int:
        """Return the bytes that wait."""
        return len(self._bytes)

    def stop(self) -> None:
        """Return no more than the sound so far. Signal handlers call it: it takes no lock."""
        self._is_stopped = True

    def take(self) -> bytes:
        """Wait for the next piece; empty at the end."""
        least = self._form.size_of(LEAST_S)
        while len(self._bytes) < least and not self._is_over():
            with self._changed:
                self._changed.wait(POLL_S)
        with self._changed:
            size = min(len(self._bytes), self._form.size_of(LARGEST_S))
            size -= size % self._form.frame_bytes
            piece = bytes(self._bytes[:size])
            del self._bytes[:size]
            self._changed.notify_all()
        return piece

    def _is_over(self) -> bool:
        """Return whether no more sound is to be expected."""
        if self._has_ended:
            return True
        if not self._is_stopped:
            return False
        now = time.monotonic()
        if self._end_by is None:
            seconds = END_S if self._source.stop() else 0.0
            self._end_by = now + seconds
        return now >= self._end_by

    def _read(self) -> None:
        try:
            samples = self._source.read()
            while samples:
                self._add(samples)
                samples = self._source.read()
        except Exception as error:
            self.fault = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _add(self, samples: bytes) -> None:
        limit = self._form.size_of(BUFFERED_S)
        with self._changed:
            while len(self._bytes) > limit and not self._is_stopped:
                self._changed.wait(POLL_S)
            if self._end_by is None or time.monotonic() < self._end_by:
                self._bytes += samples
            self._changed.notify_all()
