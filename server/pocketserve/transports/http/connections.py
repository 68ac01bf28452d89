"""waitress's connections with deadlines and limits, and its I/O loop without a clock of its own.

A neighbour that opens connections and says nothing, or asks and never reads, must not keep others out, hold a thread,
or hold more memory than one answer and :data:`MAX_UNREAD`. A stranger, who has not shown the token, gets one answer
for a connection and gives way to newcomers at any time (``docs/adr/0030-strangers.md``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import struct
import time
from operator import attrgetter
from typing import Any, Final, NamedTuple

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

from pocketserve.engine.statistics import Traffic
from pocketserve.transports.http.body import InPlaceData, ReceivedBody
from pocketserve.transports.http.parser import Parser
from pocketserve.transports.http.task import HttpTask, JsonErrorTask

MAX_UNREAD: Final = 64 * 1024
"""Bytes of answers that a client has not taken, above which its next pipelined request is not begun."""

MIN_PROGRESS: Final = 64 * 1024
"""Bytes that a slow reader must take before its timeout begins anew; loopback takes them at once."""

RESCAN_S: Final = 1.0
"""How often all connections are checked while there is traffic."""

MAX_STRANGERS: Final = 128
"""Connections of strangers: their headers and bodies take at most 36 KiB each."""

ACCEPTS: Final = MAX_STRANGERS // 2
"""Newcomers that are taken in before connections are read again: who came is read before it may have to go."""

ACCEPT_AGAIN_S: Final = 1.0
"""How long nobody is taken in after the system had no descriptor left."""

MAX_LINGERING: Final = 16
"""Connections that are drained at a time; the oldest is closed for one more."""

MAX_DRAINED: Final = 128 * 1024 * 1024
"""Bytes of a refused body that are read and thrown away, so that the client gets to read why it was refused."""

log = logging.getLogger(__name__)

_scratch = bytearray(256 * 1024)

_RESET = struct.pack("ii", 1, 0)


class HttpTimeouts(NamedTuple):
    """Seconds after which a connection is closed.

    Attributes:
        stranger: without the token, since it was opened or answered last; bytes alone win no time.
        idle: with the token, since something was sent or answered last.
        reader: with answers that the client does not take.
        lingering: after the last answer, while a refused body is still coming.
    """

    stranger: float = 10.0
    idle: float = 120.0
    reader: float = 10.0
    lingering: float = 5.0


DEFAULT_TIMEOUTS: Final = HttpTimeouts()


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection that knows when it is to be closed.

    Attributes:
        proven: a request carried the token.
        lingering: the last answer was sent, and what still comes is thrown away until the client ends.
    """

    server: Server
    requests: list[Parser]
    parser_class, task_class, error_task_class = Parser, HttpTask, JsonErrorTask
    proven = lingering = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._quiet_since = time.monotonic()
        self._unread_since: float | None = None
        self._read = self._drained = 0
        self._parked = self._answers_fault = False
        super().__init__(*arguments, **options)

    @property
    def busy(self) -> bool:
        """Return whether a request is being answered, or an answer is not sent yet."""
        return bool(self.requests) or self.total_outbufs_len > 0

    @property
    def gives_way(self) -> bool:
        """Return whether a newcomer may have its place."""
        return not (self.proven and self.busy)

    @property
    def has_unread_input(self) -> bool:
        """Return whether bytes came that this turn of the loop will read: they may hold the token."""
        return not self.lingering and self.readable() and self._has_input()

    def deadline(self, timeouts: HttpTimeouts) -> float:
        """Return the monotonic clock's time at which it is to be closed; infinite while the server is at work."""
        since = self._unread_since
        if since is not None and self.total_outbufs_len:
            return since + timeouts.reader
        if self.lingering:
            return self._quiet_since + timeouts.lingering
        if self.requests:
            return math.inf
        return self._quiet_since + (timeouts.idle if self.proven else timeouts.stranger)

    @property
    def rank(self) -> tuple[bool, bool, bool, float]:
        """Order who gives way first: refused, idle strangers, busy strangers, others; the longest quiet first."""
        return self.proven, not self.lingering, self.busy, self._quiet_since

    def _has_input(self) -> bool:
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def reset(self) -> None:
        """Close at once, without the output that the peer did not take: the system would keep it for minutes."""
        if self.socket is not None:
            if self.total_outbufs_len:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.end()

    def end(self) -> None:
        """Close, whatever may still come."""
        self.lingering = False
        self.server.lingering.pop(self, None)
        super().handle_close()

    def handle_close(self) -> None:
        """Close, unless what still comes must be read first: the peer's answer would be lost to a reset."""
        if not self.lingering:
            super().handle_close()

    def readable(self) -> bool:
        """Return whether bytes are wanted."""
        return self.lingering or bool(super().readable())

    def _linger(self) -> bool:
        """Begin to throw away what comes, if anything may; the client sees that the answer was the last."""
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

    def _drain(self) -> None:
        try:
            count = self.socket.recv_into(_scratch)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        self._drained += count
        if not count or self._drained > MAX_DRAINED:
            self.end()

    def may_begin(self) -> bool:
        """Return whether the next request may begin; if not, it is begun when the client has read."""
        self.proven = self.proven or self.requests[0].trusted
        with self.outbuf_lock:
            self._parked = self.total_outbufs_len > MAX_UNREAD
            return not self._parked

    def handle_write(self) -> None:
        if self.close_when_flushed:
            self._flush_exception(self._flush_some)
            if not (self.total_outbufs_len or self.will_close) and self._linger():
                return
        super().handle_write()
        with self.outbuf_lock:
            resumes = self._parked and self.connected and self.total_outbufs_len <= MAX_UNREAD
            if resumes:
                self._parked = False
        if resumes:
            self.server.task_dispatcher.add_task(self)

    def handle_read(self) -> None:
        if self.lingering:
            self._drain()
            return
        if self._incoming() is None:
            super().handle_read()
        body = self._incoming()
        if body is None or not self.connected:
            return
        try:
            with body.room() as room:
                count = self.socket.recv_into(room)
        except BlockingIOError:
            return  # the rest is still on its way
        except OSError:
            count = 0
        if count:
            self.last_activity = time.time()
            self.received(InPlaceData(count))
        else:
            self.handle_close()

    def _incoming(self) -> ReceivedBody | None:
        """Return the body that is being received into its own memory."""
        receiver = self.request.body_rcv if self.request is not None else None
        return receiver if isinstance(receiver, ReceivedBody) else None

    def received(self, data: bytes | InPlaceData) -> bool:
        complete: bool = super().received(data)
        request: Parser | None = self.request  # whose body is still coming
        self.proven = self.proven or (request is not None and request.trusted)
        if self.proven:
            self._quiet_since = time.monotonic()
        return complete

    def service(self) -> None:
        self._answers_fault = self.requests[0].error is not None
        super().service()
        self._quiet_since = time.monotonic()

    def _flush_some(self, do_close: bool = True) -> bool:
        before = self.total_outbufs_len
        flushed: bool = super()._flush_some(do_close)
        left = self.total_outbufs_len
        if not left:
            self._unread_since = None
            return flushed
        self._read += before - left
        if self._unread_since is None or self._read >= MIN_PROGRESS:
            self._unread_since, self._read = time.monotonic(), 0
        return flushed

    def _flush_outbufs_below_high_watermark(self) -> None:
        """Nothing: waitress would hold a thread here. An answer is taken whole, and :meth:`may_begin` bounds more."""


class Server(TcpWSGIServer):  # type: ignore[misc]
    """Accepts, and closes connections when their time is over.

    Attributes:
        lingering: connections that were refused and are still sending, the oldest first.
    """

    channel_class = Channel
    _scanned = -math.inf
    _scan_at = -math.inf
    _accept_at = -math.inf
    _starved = False

    def __init__(
        self, *arguments: Any, timeouts: HttpTimeouts, max_connections: int, traffic: Traffic, **options: Any
    ) -> None:
        self.timeouts, self.max_connections, self.traffic = timeouts, max_connections, traffic
        self.lingering: dict[Channel, None] = {}
        super().__init__(*arguments, **options)

    def readable(self) -> bool:
        """Return whether a newcomer would be taken in: there is room, or somebody to give way."""
        if not self.accepting or time.monotonic() < self._accept_at:
            return False
        channels = self.active_channels
        return len(channels) < min(self.max_connections, MAX_STRANGERS) or any(c.gives_way for c in channels.values())

    def handle_accept(self) -> None:
        """Take in some newcomers, each for a free place or for somebody who gives way."""
        channels = list(self.active_channels.values())
        strangers = [channel for channel in channels if not channel.proven]
        free = max(0, min(self.max_connections - len(channels), MAX_STRANGERS - len(strangers)))
        # One of those with the token only goes for a newcomer that nobody else makes room for.
        accepts = ACCEPTS if strangers else min(ACCEPTS, free + 1)
        candidates = sorted((c for c in strangers or channels if c.gives_way), key=attrgetter("rank"))
        silent = (channel for channel in candidates if not channel.has_unread_input)
        leaving: list[Channel] = []
        for place in range(accepts):
            gives_way = next(silent, None) if place >= free else None
            if (place >= free and gives_way is None) or not self._accept():
                break
            if gives_way is not None:
                leaving.append(gives_way)
        # Not before: a newcomer would get the descriptor, and with it an event that was meant for the other.
        for channel in leaving:
            channel.reset()

    def _accept(self) -> bool:
        """Accept one newcomer; return whether there was one."""
        try:
            accepted = self.accept()
        except OSError as error:
            self._accept_at = time.monotonic() + ACCEPT_AGAIN_S
            if not self._starved:
                log.warning("no connection can be accepted, trying again: %s", error.strerror)
            self._starved = True
            return False
        if accepted is None:
            return False
        self._starved = False
        connection, address = accepted
        try:
            self.set_socket_options(connection)
            self.channel_class(self, connection, address, self.adj, map=self._map)
        except OSError:  # it is gone already
            connection.close()
        return True

    def add_task(self, task: Any) -> None:
        if task.may_begin():
            super().add_task(task)

    def pull_trigger(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the loop is being woken already
            super().pull_trigger()

    def close_expired(self) -> float | None:
        """Close connections whose time is over; return the seconds that the I/O loop may sleep, None for any time.

        All connections are checked rarely: a deadline that began since then is at least the shortest timeout away.
        """
        now = time.monotonic()
        if now >= min(self._scan_at, self._scanned + RESCAN_S):
            self._scanned, self._scan_at = now, self._scan(now)
        else:
            self._scan_at = min(self._scan_at, self._scanned + min(self.timeouts))
        wake_at = min(self._scan_at, self._accept_at) if self._accept_at > now else self._scan_at
        # poll counts in milliseconds and cuts: one more, or it would return early and often.
        return None if wake_at == math.inf else max(0.0, wake_at - now) + 0.001

    def _scan(self, now: float) -> float:
        nearest = math.inf
        for channel in list(self.active_channels.values()):
            deadline = channel.deadline(self.timeouts)
            if deadline <= now:
                channel.reset()
            else:
                nearest = min(nearest, deadline)
        return nearest
