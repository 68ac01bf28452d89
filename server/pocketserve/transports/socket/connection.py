"""An authenticated socket connection: its reader, requests and end.

Exactly one thread is the connection's reader, or the event loop waits for bytes in its place (leader/followers). Before
the reader runs a model it releases the connection to the event loop, and it becomes the reader again before it sends
the answer; if bytes come meanwhile, the event loop has another thread read. So reading never waits for inference, and
a client that waits for each answer is served by one thread without a hand-over.
"""

from __future__ import annotations

import functools
import json
import logging
import socket
import struct
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from pocketserve.api.messages import ApiResponse
from pocketserve.transports.socket.frame_reader import END, QUIET, FrameReader
from pocketserve.transports.socket.inflight import InflightRequests
from pocketserve.transports.socket.lingering_close import LingeringClose
from pocketserve.transports.socket.poller import BROKEN
from pocketserve.transports.socket.requests import Exchange, encode
from pocketserve.transports.socket.writer import FrameWriter
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.errors import ConnectionFault, ConnectionFaultError, GoAwayReason
from pocketserve_wire.frames import (
    HEADER,
    HEADER_BYTES,
    MARK,
    Frame,
    FrameType,
    encode_frame,
    json_frame,
)

if TYPE_CHECKING:
    from pocketserve.auth.app_tokens import AppToken
    from pocketserve.engine.scheduling.cancellation import Cancellation
    from pocketserve.transports.socket.server import SocketServer
    from pocketserve_wire.frame_decoder import FrameDecoder

log = logging.getLogger(__name__)

GONE_CHECK_S: Final = 1.0
"""Seconds between two frames that find out whether a half-closed client has gone."""

_RESET = struct.pack("ii", 1, 0)
_REQUEST = int(FrameType.REQUEST)
_PART = int(FrameType.PART)


class ConnectionState(Enum):
    """The states of a connection.

    HALF_CLOSED: the peer sends nothing more, but still reads responses.
    """

    OPEN = 0
    GOING_AWAY = 1
    HALF_CLOSED = 2
    ENDING = 3
    CLOSED = 4


# Cached for each request, as access through an enum is slow.
_OPEN, _CLOSED = (
    ConnectionState.OPEN,
    ConnectionState.CLOSED,
)


class Connection:
    """A connection after READY.

    Args:
        decoder: the handshake's; it may have bytes of the first request.
        client_max_frame: bytes of the largest body that the client accepts.
        app: the client's app token; None for the installation's own.
        takes_parts: the client accepts PART frames.
    """

    def __init__(
        self,
        server: SocketServer,
        connection: socket.socket,
        decoder: FrameDecoder,
        client_max_frame: int,
        app: AppToken | None = None,
        *,
        takes_parts: bool = False,
    ) -> None:
        self.app = app
        self.takes_parts = takes_parts
        self.client_max_frame = client_max_frame
        self.service = server.service
        self.execute = server.workers.execute
        self.descriptor = connection.fileno()
        self._server = server
        self._socket = connection
        limits, apps = server.limits, server.apps
        access = None
        if app is not None and apps is not None:
            access = functools.partial(apps.is_good, app)
        self._inflight = InflightRequests(
            limits, server.request_slots, server.incoming, access
        )
        self._reader = FrameReader(connection, decoder, self._inflight, server.timeouts)
        self._writer = FrameWriter(
            connection,
            limits.max_bytes_inflight,
            server.timeouts,
            self.execute,
            on_finished=self._close_gently,
            on_broken=self.abort,
        )
        self._lock = threading.Lock()
        self._state = _OPEN
        self._watches_end = False
        self._released = False  # the event loop waits for bytes instead of a reader

    # Reading

    def read(self) -> None:
        """Read and answer until the connection is quiet or closed.

        Also until another thread reads. For the reader.
        """
        try:
            reads = True
            while reads:
                frame = self._reader.read()
                reads = (
                    self._handle_request(frame)
                    if frame.type == _REQUEST
                    else self._handle_other(frame)
                )
                del frame  # its body's memory is used again
        except ConnectionFaultError as fault:
            self._fail(fault)
        except OSError:
            self._reader.drop()
            self.abort()
        except Exception:
            log.exception("unexpected error on a connection")
            self._fail(
                ConnectionFaultError(
                    ConnectionFault.INTERNAL, "the server failed; see its log"
                )
            )

    def _handle_other(self, frame: Frame) -> bool:
        """Handle a frame other than a request.

        Return whether this thread is still the reader.
        """
        if frame.type == QUIET:
            self._await_bytes()
            return False
        if frame.type == END:
            self._half_close()
            return False
        if frame.type == FrameType.PING:
            pong = encode_frame(Frame(FrameType.PONG, arg=frame.arg))
            self._writer.post([pong], len(pong), urgent=True)
        elif frame.type == FrameType.CANCEL:
            cancellation = self._inflight.cancellation(frame.request_id)
            if cancellation is not None:
                cancellation.cancel()
        elif frame.type == FrameType.ERROR:
            self._reader.drop()
            self.abort()
            return False
        return True

    def _handle_request(self, frame: Frame) -> bool:
        exchange = Exchange(
            self, frame, self._inflight.received_at, threading.get_ident()
        )
        with self._lock:
            if self._state is _OPEN:
                refusal = self._inflight.add(frame, exchange.cancellation)
            else:
                closing = ApiError(
                    ErrorCode.SHUTTING_DOWN,
                    "the server is shutting down",
                    retry_after_s=1.0,
                )
                refusal = self._inflight.refusal or closing
        if refusal is not None:
            self._writer.post(
                *encode(
                    frame.request_id, exchange.refuse(refusal), self.client_max_frame
                )
            )
            return True
        if not exchange.reads:
            self._release_reader()
        job = exchange.start()
        while job is not None:
            if exchange.reads:
                self._release_reader()
                exchange.reads = False
            job = job()
        exchange.thread = 0  # any thread may answer it later, even this one
        if exchange.reads:
            return True
        with self._lock:
            return self._acquire_reader()

    def _release_reader(self) -> None:
        """Hand over reading while this thread is busy."""
        if self._reader.decoder.buffered:
            # These bytes are already read, so the event loop would not report them.
            self.execute(self.read)
            return
        with self._lock:
            self._released = self._state is not _CLOSED
            if self._released:
                self._server.event_loop.arm(self.descriptor)
                return
        self._reader.drop()

    def _await_bytes(self) -> None:
        """Have the event loop wait for bytes, with a timeout."""
        with self._lock:
            if self._state is _CLOSED:
                self._reader.drop()
                return
            self._released = True
            self._set_timer()
            self._server.event_loop.arm(self.descriptor)

    def _set_timer(self) -> None:
        """Set the timeout for the rest of a frame or for a request.

        Requires the lock, while the reader is released.
        """
        if self._reader.ends is not None:
            self._server.event_loop.set_timer(self, self._reader.ends)
        elif not len(self._inflight):
            quiet_s = self._server.limits.idle_ms / 1000 - self._server.timeouts.quiet
            self._server.event_loop.set_timer(self, time.monotonic() + quiet_s)

    def _acquire_reader(self) -> bool:
        """Become the reader, unless another thread is.

        Requires the lock.
        """
        if not self._released or self._state is _CLOSED:
            return False
        self._released = False
        # Else the event loop would wake up at the next request, together with this thread.
        self._server.event_loop.disarm(self.descriptor)
        return True

    # Answering

    def answer(self, exchange: Exchange, answer: ApiResponse) -> None:
        """Send a response without waiting."""
        frame = exchange.frame
        with self._lock:
            if not exchange.reads and exchange.thread == threading.get_ident():
                exchange.reads = self._acquire_reader()
            self._inflight.make_room(frame)
        self._writer.post(*encode(frame.request_id, answer, self.client_max_frame))
        self._inflight.remove(frame.request_id)
        # Without the lock: every change of the state checks the requests in flight afterwards.
        if self._released or self._state is not _OPEN:
            self._after_answer()

    def send_part(
        self, request_id: int, data: bytes, cancellation: Cancellation
    ) -> bool:
        """Send a part of an answer once the client has read the previous ones.

        Return False if the request was cancelled or the connection ends.
        """
        size = len(data)
        head = HEADER.pack(MARK, _PART, 0, request_id, 0, 0, 0, 0, size)
        return self._writer.post_when_idle(
            [head, data], HEADER_BYTES + size, lambda: cancellation.cancelled
        )

    def _after_answer(self) -> None:
        """Close after the last response, or wait for the next request."""
        with self._lock:
            ends = self._may_end()
            if self._released and self._state is _OPEN and not len(self._inflight):
                self._set_timer()
        if ends:
            self._writer.finish()

    # The event loop

    def on_ready(self, events: int) -> None:
        """Have a thread read the bytes or the error."""
        with self._lock:
            is_broken = self._state is ConnectionState.HALF_CLOSED and bool(
                events & BROKEN
            )
            if self._state is _CLOSED or not (self._released or is_broken):
                return
            self._released = False
        if is_broken:
            self.abort()
            return
        self._server.event_loop.set_timer(self, None)
        try:
            self.execute(self.read)
        except RuntimeError:  # the system has no thread for it
            self._reader.drop()
            self.abort()

    def on_time(self) -> None:
        """Close the connection: nothing came for too long."""
        if self._state is ConnectionState.HALF_CLOSED:
            self._check_gone()
            return
        with self._lock:
            late = self._reader.ends is not None
            if (
                self._state is _CLOSED
                or not self._released
                or (len(self._inflight) and not late)
            ):
                return
            if not late and self._writer.busy:  # the peer still reads its answers
                self._set_timer()
                return
            self._released = False
            if not late:
                self._state = ConnectionState.ENDING
        if late:
            self._fail(self._reader.too_slow())
        else:
            self._reader.drop()
            self._writer.finish(
                self._goaway(GoAwayReason.IDLE, "there was no request for a long time")
            )

    # The end

    def go_away(self) -> None:
        """Accept no more requests; close after those in progress."""
        with self._lock:
            if self._state is not _OPEN:
                return
            self._state = ConnectionState.GOING_AWAY
            ends = self._may_end()
        frame = self._goaway(GoAwayReason.SHUTTING_DOWN, "the server is shutting down")
        if ends:
            self._writer.finish(frame)
        else:
            self._writer.post([frame], len(frame), urgent=True)

    def _goaway(self, reason: GoAwayReason, text: str) -> bytes:
        body = json.dumps({"error": text, "code": reason.name}).encode("ascii")
        return json_frame(
            FrameType.GOAWAY, body, request_id=self._inflight.last_id, arg=reason
        )

    def _half_close(self) -> None:
        """Finish the requests of a peer that has closed its sending side, then close.

        A peer that stopped within a frame is cut off.
        """
        mid_frame = self._reader.decoder.mid_frame
        self._reader.drop()
        if mid_frame:
            return self.abort()
        with self._lock:
            if self._state in (ConnectionState.ENDING, _CLOSED):
                return None
            self._state = ConnectionState.HALF_CLOSED
            # From now on it reports only that the connection broke.
            self._server.event_loop.disarm(self.descriptor)
            ends = self._may_end()
            self._set_gone_check()
        if ends:
            self._writer.finish()
        return None

    def watch_end(self) -> None:
        """Find out from now on whether a half-closed client has gone."""
        with self._lock:
            self._watches_end = True
            if self._state is ConnectionState.HALF_CLOSED:
                self._set_gone_check()

    def _set_gone_check(self) -> None:
        """Set the time of the next check of a half-closed client.

        Requires the lock.
        """
        if self._watches_end and len(self._inflight):
            due_at = time.monotonic() + GONE_CHECK_S
            self._server.event_loop.set_timer(self, due_at)

    def _check_gone(self) -> None:
        """Send a PING, which the system rejects if the client has gone.

        A client that closed everything looks like one that only sends nothing more.
        """
        with self._lock:
            if self._state is not ConnectionState.HALF_CLOSED:
                return
            self._set_gone_check()
        ping = encode_frame(Frame(FrameType.PING))
        self._writer.post([ping], len(ping), urgent=True)

    def _may_end(self) -> bool:
        """Return whether to close now, once.

        Requires the lock.
        """
        if self._state not in (
            ConnectionState.GOING_AWAY,
            ConnectionState.HALF_CLOSED,
        ) or len(self._inflight):
            return False
        self._state = ConnectionState.ENDING
        return True

    def _fail(self, fault: ConnectionFaultError) -> None:
        """Report the peer's fault and close.

        For the reader.
        """
        log.debug("closing a connection: %s", fault.message)
        self._reader.drop()
        for cancellation in self._inflight.cancellations():
            cancellation.cancel()
        self._writer.finish(
            json_frame(FrameType.ERROR, fault.body(), arg=fault.fault),
            drop_waiting=True,
        )

    def _close_gently(self) -> None:
        """Close without a reset, so that the peer can read the last bytes."""
        if self._close():
            LingeringClose.begin(self._server, self._socket)
            self._server.forget(self)

    def abort(self) -> None:
        """Close at once, discarding unsent output."""
        if not self._close():
            return
        self._writer.drop()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        except OSError:
            pass
        self._socket.close()
        for cancellation in self._inflight.cancellations():
            cancellation.cancel()
        self._server.forget(self)

    on_fault = abort

    def _close(self) -> bool:
        """Mark this connection closed, once.

        No reference cycle may remain: it would keep request bodies in memory.
        """
        with self._lock:
            if self._state is _CLOSED:
                return False
            self._state = _CLOSED
            self._server.event_loop.remove(self.descriptor, self)
            if self._released:  # nobody reads and nobody will; else the reader drops it, as it finds us closed
                self._released = False
                self._reader.drop()
            return True
