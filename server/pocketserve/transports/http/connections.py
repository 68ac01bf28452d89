"""waitress's connections, made patient with honest peers only, and its I/O loop without a clock of its own.

A neighbour that opens connections and says nothing, or asks and never reads, must not keep others out, hold a thread,
or hold more memory than one answer and :data:`MAX_UNREAD`.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from typing import Any, Final

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import TcpWSGIServer
from waitress.task import WSGITask

from pocketserve.security import Guard
from pocketserve.transports.http.body import MAX_JOINED, Body, Part, Placed
from pocketserve_wire import ApiError
from pocketserve_wire.records import dataclass

MAX_UNREAD: Final = 64 * 1024
"""Bytes of answers that a client has not taken, above which its next pipelined request is not begun."""

MIN_PROGRESS: Final = 64 * 1024
"""Bytes that a slow reader must take each time before its patience begins anew; loopback takes them at once."""

RESCAN_S: Final = 1.0
"""While there is traffic, how often all connections are looked through."""

_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds after which a connection is closed.

    Attributes:
        stranger: without the token, since it was opened or answered last; bytes alone win no time.
        idle: with the token, since something was sent or answered last.
        reader: with answers that the client does not take.
    """

    stranger: float = 10.0
    idle: float = 120.0
    reader: float = 10.0

    @property
    def shortest(self) -> float:
        """What comes into being at any moment ends this much later at the soonest."""
        return min(self.stranger, self.idle, self.reader)


DEFAULT_PATIENCE: Final = Patience()


class Task(WSGITask):  # type: ignore[misc]  # waitress has no types
    """Sends the header with the body, since two sends wake the client twice, and large bodies without a copy."""

    wrote_header: bool

    def write(self, data: bytes | memoryview) -> None:
        left = -1 if self.content_length is None else self.content_length - self.content_bytes_written
        if not (self.complete and self.has_body and 0 < len(data) <= left):
            super().write(data)
            return
        header = b"" if self.wrote_header else self.build_response_header()
        self.wrote_header = True
        self.content_bytes_written += len(data)
        if len(data) <= MAX_JOINED:
            self.channel.write_soon(header + data)
            return
        self.channel.write_soon(header)
        self.channel.write_soon(Part(memoryview(data)))


class Channel(HTTPChannel):  # type: ignore[misc]
    """One connection; it knows when it has earned no more patience.

    Attributes:
        guard: set for each server by a subclass.
        proven: a request carried the token.
    """

    guard: Guard
    task_class = Task
    proven = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._quiet_since = time.monotonic()
        self._unread_since: float | None = None
        self._taken = 0
        self._parked = False
        super().__init__(*arguments, **options)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, or an answer is not sent yet."""
        return bool(self.requests) or self.total_outbufs_len > 0

    def deadline(self, patience: Patience) -> float:
        """The monotonic clock's time at which it is to be closed; infinite while the server itself is at work."""
        since = self._unread_since
        if since is not None and self.total_outbufs_len:
            return since + patience.reader
        if self.requests:
            return math.inf
        return self._quiet_since + (patience.idle if self.proven else patience.stranger)

    def rank(self) -> tuple[bool, float]:
        """Who gives way first: strangers before others, and of those the one that was quiet for longest."""
        return self.proven, self._quiet_since

    def has_input(self) -> bool:
        """Whether bytes came that were not read yet."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def reset(self) -> None:
        """Close at once. What the peer did not take is thrown away: the system would keep it for minutes."""
        if self.socket is not None:
            if self.total_outbufs_len:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.handle_close()

    def may_begin(self) -> bool:
        """Whether the next request may begin; if not, it is begun when the client has read."""
        with self.outbuf_lock:
            self._parked = self.total_outbufs_len > MAX_UNREAD
            return not self._parked

    def handle_write(self) -> None:
        super().handle_write()
        with self.outbuf_lock:
            resumes = self._parked and self.connected and self.total_outbufs_len <= MAX_UNREAD
            if resumes:
                self._parked = False
        if resumes:
            self.server.task_dispatcher.add_task(self)

    def handle_read(self) -> None:
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
            self.received(Placed(count))
        else:
            self.handle_close()

    def _incoming(self) -> Body | None:
        """The body that is being received into its own memory."""
        receiver = self.request.body_rcv if self.request is not None else None
        return receiver if isinstance(receiver, Body) else None

    def received(self, data: bytes | Placed) -> bool:
        taken: bool = super().received(data)
        self._look_for_token(self.request)  # of a request whose body is still coming
        if self.proven:
            self._quiet_since = time.monotonic()
        return taken

    def service(self) -> None:
        self._look_for_token(self.requests[0])
        super().service()
        self._quiet_since = time.monotonic()

    def _look_for_token(self, request: HTTPRequestParser | None) -> None:
        if self.proven or request is None or not request.headers_finished:
            return
        try:
            self.guard.check_token(request.headers.get("AUTHORIZATION"))
        except ApiError:
            return
        self.proven = True

    def _flush_some(self, do_close: bool = True) -> bool:
        before = self.total_outbufs_len
        flushed: bool = super()._flush_some(do_close)
        left = self.total_outbufs_len
        if not left:
            self._unread_since = None
            return flushed
        self._taken += before - left
        if self._unread_since is None or self._taken >= MIN_PROGRESS:
            self._unread_since, self._taken = time.monotonic(), 0
        return flushed

    def _flush_outbufs_below_high_watermark(self) -> None:
        """Nothing: waitress would hold a thread here. An answer is taken whole, and :meth:`may_begin` bounds more."""


class Server(TcpWSGIServer):  # type: ignore[misc]
    """Accepts, and closes connections when their time is over.

    Attributes:
        patience: set for each server by a subclass.
        most: connections at a time.
    """

    patience: Patience
    most: int
    _scanned = -math.inf
    _scan_at = -math.inf

    def readable(self) -> bool:
        """Whether a newcomer would be taken in: there is room, or somebody to give way."""
        channels = self.active_channels
        return self.accepting and (len(channels) < self.most or not all(channel.busy for channel in channels.values()))

    def handle_accept(self) -> None:
        gives_way = None
        if len(self.active_channels) >= self.most:
            gives_way = self._idlest()
            if gives_way is None:  # those that are not busy have just sent something, which is read first
                return
        super().handle_accept()
        # Not before: the newcomer would get the descriptor, and with it an event that was meant for the other.
        if gives_way is not None:
            gives_way.reset()

    def add_task(self, task: Any) -> None:
        if task.may_begin():
            super().add_task(task)

    def rest(self) -> float | None:
        """Close what has run out of patience; seconds that the I/O loop may then sleep, None for as long as it likes.

        All connections are looked through rarely: a deadline that came into being since then is never nearer than
        the shortest patience.
        """
        now = time.monotonic()
        if now >= min(self._scan_at, self._scanned + RESCAN_S):
            self._scanned, self._scan_at = now, self._scan(now)
        else:
            self._scan_at = min(self._scan_at, self._scanned + self.patience.shortest)
        # poll counts in milliseconds and cuts: one more, or it would return early and often.
        return None if self._scan_at == math.inf else max(0.0, self._scan_at - now) + 0.001

    def _scan(self, now: float) -> float:
        nearest = math.inf
        for channel in list(self.active_channels.values()):
            deadline = channel.deadline(self.patience)
            if deadline <= now:
                channel.reset()
            else:
                nearest = min(nearest, deadline)
        return nearest

    def _idlest(self) -> Channel | None:
        idle = [channel for channel in self.active_channels.values() if not channel.busy]
        return next((channel for channel in sorted(idle, key=Channel.rank) if not channel.has_input()), None)
