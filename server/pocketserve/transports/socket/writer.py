"""The writing half of a connection: whole frames, in order, from any thread."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pocketserve.transports.socket.timeouts import Timeouts
from pocketserve_wire.errors import ConnectionFault
from pocketserve_wire.frames import MAX_CHUNKS, Chunk, rest_of

if TYPE_CHECKING:
    from pocketserve.engine.scheduling.entries import Execute

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1024
"""Frames that may wait behind the one being written: a peer that only asks and never reads."""

CHECK_S: Final = 0.25
"""Seconds between two checks whether a request that waits to be sent was cancelled."""

Waiting = tuple[list[Chunk], int]

_NOTHING: Final[Waiting] = ([], 0)
_DONT_WAIT: Final = int(socket.MSG_DONTWAIT)


class FrameWriter:
    """Sends frames in order.

    The first thread writes; others leave their frames to it.

    Only :meth:`post_when_idle` waits for the peer: where its buffer is full, another thread
    writes the rest.

    Args:
        max_bytes: bytes that may wait behind the frame being written.
        execute: has another thread run a function.
        on_finished: called once when the system has the last frame, see :meth:`finish`.
        on_broken: called once when writing fails, or the peer takes too long.
    """

    def __init__(
        self,
        connection: socket.socket,
        max_bytes: int,
        timeouts: Timeouts,
        execute: Execute,
        on_finished: Callable[[], None],
        on_broken: Callable[[], None],
    ) -> None:
        self._socket = connection
        self._max_bytes = max_bytes
        self._timeouts = timeouts
        self._execute = execute
        self._on_finished = on_finished
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy = self._ending = self._ended = False
        self._urgent: deque[Waiting] = deque()
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._rest = _NOTHING
        self._frames = 0  # begun so far

    def post(self, chunks: list[Chunk], size: int, *, urgent: bool = False) -> None:
        """Send a frame, or leave it to the writing thread.

        Args:
            size: bytes in all chunks together.
            urgent: goes before what waits.
        """
        with self._lock:
            if self._ending:
                return
            if not self._busy:
                # Send under the lock: releasing it first would mean acquiring it again to
                # mark the frame as sent, and other frames wait for this one anyway.
                rest = self._send(chunks, size)
                if rest is _NOTHING:
                    return
                is_lost = rest is None
                if rest is not None:
                    self._busy, self._rest = True, rest
            elif self._keep(chunks, size, urgent):
                log.debug("closing a connection: %s", ConnectionFault.SLOW_READER.name)
                is_lost = True
            else:
                return
        if is_lost:
            self._end(self._on_broken)
        else:
            self._flush_elsewhere()

    def post_when_idle(
        self, chunks: list[Chunk], size: int, is_cancelled: Callable[[], bool]
    ) -> bool:
        """Send a frame after the client has read the frames before.

        This waits for the peer, at most as long as one frame may take; then the
        connection ends.

        Args:
            is_cancelled: returns whether the frame isn't needed any more.

        Returns:
            False if the frame was not sent: it isn't needed, or the connection ends.
        """
        deadline = time.monotonic() + self._timeouts.frame
        with self._idle:
            while self._busy and not self._ending:
                if is_cancelled():
                    return False
                if time.monotonic() > deadline:
                    break
                self._idle.wait(CHECK_S)
            if self._ending:
                return False
            is_late = self._busy
        if is_late:
            log.debug("closing a connection: %s", ConnectionFault.SLOW_READER.name)
            self._end(self._on_broken)
            return False
        self.post(chunks, size)
        return True

    @property
    def busy(self) -> bool:
        """Return whether something is being sent."""
        return self._busy

    def finish(self, frame: bytes = b"", *, drop_waiting: bool = False) -> None:
        """Send a last frame after the current one.

        Pending frames follow or are dropped.
        """
        with self._lock:
            if self._ending:
                return
            self._ending = True
            self._idle.notify_all()
            if drop_waiting:
                self._waiting.clear()
                self._urgent.clear()
            if frame:
                self._urgent.append(([frame], len(frame)))
            if self._busy:
                return
            self._busy = True
        if not self._advance():
            self._flush_elsewhere()

    def _flush_elsewhere(self) -> None:
        try:
            self._execute(self._flush)
        except RuntimeError:  # the system has no thread for it
            self._end(self._on_broken)

    def _flush(self) -> None:
        """Write everything, waiting for the peer within the limits."""
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLOUT)
        except (OSError, ValueError):
            return self._end(self._on_broken)
        frame, ends = self._frames, time.monotonic() + self._timeouts.frame
        while True:
            timeout = min(self._timeouts.stall, ends - time.monotonic())
            if timeout <= 0 or not poller.poll(1000 * timeout):
                log.debug("closing a connection: %s", ConnectionFault.SLOW_READER.name)
                return self._end(self._on_broken)
            if self._advance():
                return None
            if self._frames != frame:
                frame, ends = self._frames, time.monotonic() + self._timeouts.frame

    def drop(self) -> None:
        """Send nothing more and call no callbacks: the connection is gone."""
        self._end(_do_nothing)

    def _keep(self, chunks: list[Chunk], size: int, urgent: bool) -> bool:
        """Queue a frame; return whether that is too much."""
        self._waiting_bytes += size
        (self._urgent if urgent else self._waiting).append((chunks, size))
        frames = len(self._waiting) + len(self._urgent)
        return self._waiting_bytes > self._max_bytes or frames > MAX_WAITING

    def _advance(self) -> bool:
        """Write frames without blocking; return whether all were written."""
        while True:
            if self._rest[1]:
                rest = self._send(*self._rest)
                if rest is None:
                    self._end(self._on_broken)
                    return True
                self._rest = rest
                if rest[1]:
                    return False
            if not self._take_next():
                return True

    def _send(self, chunks: list[Chunk], size: int) -> Waiting | None:
        """Send without blocking; return the rest, None for a broken connection."""
        try:
            sent = self._socket.sendmsg(
                chunks if len(chunks) <= MAX_CHUNKS else chunks[:MAX_CHUNKS],
                (),
                _DONT_WAIT,
            )
        except BlockingIOError:
            return chunks, size
        except (OSError, ValueError):
            return None
        return _NOTHING if sent == size else (rest_of(chunks, sent), size - sent)

    def _take_next(self) -> bool:
        with self._lock:
            self._rest = _NOTHING
            queue = self._urgent or self._waiting
            if queue and not self._ended:
                self._rest = queue.popleft()
                self._waiting_bytes -= self._rest[1]
                self._frames += 1
                return True
            self._busy = False
            self._idle.notify_all()
            if not self._ending or self._ended:
                return False
            self._ended = True
            on_finished = self._on_finished
            self._forget()
        on_finished()
        return False

    def _end(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self._ending = True
            self._idle.notify_all()
            self._waiting.clear()
            self._urgent.clear()
            self._rest = _NOTHING
            if self._ended:
                return
            self._ended = True
            self._forget()
        callback()

    def _forget(self) -> None:
        """Drop the callbacks, whose owner references this writer."""
        self._on_finished = self._on_broken = _do_nothing


def _do_nothing() -> None:
    pass
