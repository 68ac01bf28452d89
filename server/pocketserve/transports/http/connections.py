"""waitress's connections with deadlines and limits.

Idle and slow-reading clients must not exhaust connections, threads or memory: each
takes one response and :data:`MAX_UNREAD` at most. An unauthenticated client gets one
response per connection, and may be evicted at any time (``docs/adr/0030-strangers.md``).
"""

from __future__ import annotations

import math
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from waitress.channel import HTTPChannel

from pocketserve.transports.http.body import InPlaceData, MemoryBuffer, ReceivedBody
from pocketserve.transports.http.parser import HttpParser
from pocketserve.transports.http.task import HttpTask, JsonErrorTask

if TYPE_CHECKING:
    from pocketserve.transports.http.server import HttpServer

MAX_UNREAD: Final = 64 * 1024
"""Unread bytes of responses above which the next pipelined request does not begin."""

MAX_UNREAD_PARTS: Final = 1024 * 1024
"""Bytes of a response in parts that are kept for a slow client."""

MIN_PROGRESS: Final = 64 * 1024
"""Bytes that a slow reader must read to restart its timeout."""

MAX_LINGERING: Final = 16
"""Connections that are drained at a time; the oldest is closed for one more."""

MAX_DRAINED: Final = 128 * 1024 * 1024
"""Bytes of a rejected body that are read, so that the client reads the reason."""

_scratch = bytearray(256 * 1024)

_RESET = struct.pack("ii", 1, 0)


class HttpTimeouts(NamedTuple):
    """Seconds after which a connection is closed."""

    # Without the token, since the opening or the last response; bytes alone don't count.
    unauthenticated: float = 10.0
    idle: float = 120.0  # with the token, since the last bytes or response
    reader: float = 10.0  # while the client does not read its responses
    lingering: float = 5.0  # after the last response, while a rejected body arrives
    # Without the token, since the opening, while there are too many of these.
    newcomer: float = 2.0


DEFAULT_TIMEOUTS: Final = HttpTimeouts()


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection with a deadline.

    Attributes:
        authenticated: a request had a valid token.
        lingering: the last response was sent; further input is discarded.
    """

    server: HttpServer
    requests: list[HttpParser]
    parser_class, task_class, error_task_class = HttpParser, HttpTask, JsonErrorTask
    authenticated = lingering = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._quiet_since = time.monotonic()
        self._unread_since: float | None = None
        self._read = self._drained = 0
        self._parked = self._answers_fault = self._input_waits = False
        super().__init__(*arguments, **options)

    @property
    def busy(self) -> bool:
        """Return whether a request or its response is in progress."""
        return bool(self.requests) or self.total_outbufs_len > 0

    @property
    def evictable(self) -> bool:
        """Return whether this connection may be closed for a new one."""
        return not (self.authenticated and self.busy)

    @property
    def has_unread_input(self) -> bool:
        """Return whether unread bytes have arrived, which may carry the token."""
        if self.lingering or self.requests:
            return False
        return self.readable() and self._has_input()

    def check_client_disconnected(self) -> bool:
        """Return whether the client has gone, or takes no parts of its answer.

        waitress offers this to applications. While a request is answered, it doesn't
        read, and so wouldn't notice.
        """
        connection = self.socket
        if not self.connected or connection is None:
            return True
        if self.total_outbufs_len > MAX_UNREAD_PARTS:
            return True
        try:
            return not connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_newcomer(self, timeouts: HttpTimeouts) -> bool:
        """Return whether the client may not have had time to act yet.

        One that has sent a part of a request is not: its bytes take memory.
        """
        return (
            self.request is None
            and time.monotonic() < self._quiet_since + timeouts.newcomer
        )

    def deadline(self, timeouts: HttpTimeouts) -> float:
        """Return the monotonic time at which to close this connection.

        It is infinite while the server works on a request.
        """
        since = self._unread_since
        if since is not None and self.total_outbufs_len:
            return since + timeouts.reader
        if self.lingering:
            return self._quiet_since + timeouts.lingering
        if self.requests:
            return math.inf
        return self._quiet_since + (
            timeouts.idle if self.authenticated else timeouts.unauthenticated
        )

    @property
    def eviction_order(self) -> tuple[bool, bool, bool, float]:
        """Return the sort key for evictions.

        Refused connections go first, then idle and busy ones without the token, then
        others; of each kind, the longest quiet first.
        """
        return self.authenticated, not self.lingering, self.busy, self._quiet_since

    def _has_input(self) -> bool:
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def reset(self) -> None:
        """Close at once, discarding unread output.

        The system would keep it for minutes otherwise.
        """
        if self.socket is not None:
            if self.total_outbufs_len:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.end()

    def end(self) -> None:
        """Close, whatever may still come."""
        self.lingering = False
        self.server.lingering.pop(self, None)
        super().handle_close()

    def handle_expt(self) -> None:
        # Urgent data (MSG_OOB). Nothing reads it, so that poll() would report it for ever.
        self.reset()

    def handle_close(self) -> None:
        """Close, unless remaining input must be read first.

        A reset would discard the last response.
        """
        if not self.lingering:
            super().handle_close()

    def readable(self) -> bool:
        """Return whether the I/O loop waits for input.

        waitress doesn't during a request, and so wakes the loop after each response.
        """
        if self.lingering:
            return True
        return not (
            self._input_waits
            or self.will_close
            or self.close_when_flushed
            or self.total_outbufs_len
        )

    def _must_wait(self) -> bool:
        """Return whether input has to wait for the end of a request.

        If so, :meth:`service` wakes the I/O loop then.
        """
        with self.requests_lock:
            self._input_waits = bool(self.requests)
            return self._input_waits

    def _linger(self) -> bool:
        """Begin to discard input, if there may be any.

        The client sees that no more responses follow.
        """
        if not (self._answers_fault or self._has_input()):
            return False
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        self.close_when_flushed = False
        self.lingering, self._quiet_since = True, time.monotonic()
        self.server.lingering[self] = None
        if len(self.server.lingering) > MAX_LINGERING:
            next(iter(self.server.lingering)).end()
        return True

    def may_begin(self) -> bool:
        """Return whether the next request may begin.

        If not, it begins when the client has read enough.
        """
        self.authenticated = self.authenticated or self.requests[0].trusted
        with self.outbuf_lock:
            self._parked = self.total_outbufs_len > MAX_UNREAD
            return not self._parked

    def handle_write(self) -> None:
        # waitress closes after the last response although input may remain, and never
        # resumes a connection that waits for a slow reader.
        if self.close_when_flushed:
            self._flush_exception(self._flush_some)
            if not (self.total_outbufs_len or self.will_close) and self._linger():
                return
        super().handle_write()
        with self.outbuf_lock:
            has_room = self.total_outbufs_len <= MAX_UNREAD
            resumes = self._parked and self.connected and has_room
            if resumes:
                self._parked = False
        if resumes:
            self.server.task_dispatcher.add_task(self)

    def handle_read(self) -> None:
        # waitress would receive 8 KiB at a time and copy it; bodies go into their memory.
        if self.lingering:
            self._drain()
            return
        if self._must_wait() or not self.readable():  # output came since poll()
            return
        request = self.request
        if request is None or not isinstance(request.body_rcv, ReceivedBody):
            super().handle_read()
            request = self.request
        if request is None or not self.connected:
            return
        body = request.body_rcv
        if not isinstance(body, ReceivedBody):
            return
        with body.room() as room:
            count = self._receive_into(room)
        if count:
            self.received(InPlaceData(count))
        elif count == 0:
            self.handle_close()

    def _drain(self) -> None:
        """Discard input after the last response."""
        count = self._receive_into(_scratch)
        self._drained += count or 0
        if count == 0 or self._drained > MAX_DRAINED:
            self.end()

    def _receive_into(self, room: bytearray | memoryview) -> int | None:
        """Return the number of received bytes: 0 at the end, None without any."""
        try:
            return int(self.socket.recv_into(room))
        except BlockingIOError:
            return None
        except OSError:
            return 0

    def received(self, data: bytes | InPlaceData) -> bool:
        # To learn early that a request has a valid token: its connection stays longer.
        complete: bool = super().received(data)
        request: HttpParser | None = self.request  # whose body is still coming
        self.authenticated = self.authenticated or (
            request is not None and request.trusted
        )
        if self.authenticated:
            self._quiet_since = time.monotonic()
        return complete

    def service(self) -> None:
        # To know when the last response ended, and whether it was an error.
        self._answers_fault = self.requests[0].error is not None
        super().service()
        self._quiet_since = time.monotonic()
        with self.requests_lock:
            wakes = self._input_waits
            self._input_waits = False
        if wakes or self.writable() or self.server.full:
            self.server.wake()

    def write_soon(self, data: bytes | MemoryBuffer) -> int:
        """Send as much as possible now; the I/O loop sends the rest."""
        # waitress would put small parts into a buffer first.
        rest = self._send_now(data) if isinstance(data, bytes) else data
        if len(rest):
            super().write_soon(rest)
        if self.writable():
            self.server.wake()
        return len(data)

    def _send_now(self, data: bytes) -> bytes:
        """Send a part and return the unsent rest."""
        with self.outbuf_lock:
            if self.total_outbufs_len or not self.connected:
                return data
            try:
                sent: int = self.send(data, do_close=False)
            except OSError:  # so will the next attempt, which closes the connection
                return data
        return data[sent:]

    def _flush_some(self, do_close: bool = True) -> bool:
        # To see whether the client makes progress.
        before = self.total_outbufs_len
        flushed: bool = super()._flush_some(do_close)
        self._read += before - self.total_outbufs_len
        if not self.total_outbufs_len:
            self._unread_since = None
        elif self._unread_since is None or self._read >= MIN_PROGRESS:
            self._unread_since, self._read = time.monotonic(), 0
        return flushed
