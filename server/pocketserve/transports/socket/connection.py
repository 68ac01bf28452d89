"""One authenticated connection: who reads it, what runs, and how it ends.

The right to read is one thing that exactly one thread holds, or the event loop keeps (``_watched``). The thread that
has read a request lays that right down with the event loop, runs the request itself, and takes it up again before it
sends the answer; while it runs, the event loop gives the right to another thread as soon as bytes come. So reading
never waits for inference, and a client that waits for each answer is served by one thread without a single hand-over.

Reading streams that are too fast is apart, in `stream_reader.py`; what is left here stays together, since all of it
turns on that one right and on the lock that guards it.
"""

from __future__ import annotations

import functools
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pocketserve.api.messages import ApiResponse, error_response
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.inference.queued import QueuedRequest, Sender
from pocketserve.service import LONG_LINE
from pocketserve.transports.socket import requests
from pocketserve.transports.socket.lingering_close import LingeringClose
from pocketserve.transports.socket.poller import BROKEN
from pocketserve.transports.socket.stream_reader import Known, StreamReader
from pocketserve.transports.socket.writer import FrameWriter
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.faults import ConnectionFault, ConnectionFaultError, GoAwayReason
from pocketserve_wire.frame_decoder import FrameDecoder
from pocketserve_wire.frames import Frame, FrameType, Header, encode_frame, json_frame

if TYPE_CHECKING:
    from pocketserve.auth.app_tokens import AppToken
    from pocketserve.transports.socket.server import SocketServer

log = logging.getLogger(__name__)

_RESET = struct.pack("ii", 1, 0)

SMALL_BODY: Final = 65_536
"""Bodies up to this size are taken without a look at those of other connections: 64 of these are 4 MiB. And they may
wait for their model without a thread."""

_REQUEST = int(FrameType.REQUEST)
_WAIT_ALL, _DONT_WAIT = int(socket.MSG_WAITALL), int(socket.MSG_DONTWAIT)


class Connection(StreamReader):
    """A connection after READY.

    Args:
        decoder: as the handshake left it; it may hold bytes of the first request.
        client_max_frame: bytes of the largest body that the client takes.
        app: the app's token that the client has; None for the installation's own.
    """

    def __init__(
        self,
        server: SocketServer,
        connection: socket.socket,
        decoder: FrameDecoder,
        client_max_frame: int,
        app: AppToken | None = None,
    ) -> None:
        self.app = app
        self._server = server
        self._service = server.service
        self._runners = server.runners
        self._event_loop = server.event_loop
        self._socket = connection
        self.descriptor = connection.fileno()
        self._decoder = decoder
        self._client_max_frame = client_max_frame
        self._admission = requests.Admission(
            server.limits.max_frame,
            server.limits.max_inflight,
            server.limits.max_bytes_inflight,
            functools.partial(server.apps.is_good, app) if app is not None and server.apps is not None else None,
        )
        decoder.admit, decoder.reuse = self._admit, True
        self._writer = FrameWriter(
            connection,
            server.limits.max_bytes_inflight,
            server.timeouts,
            too_slow=self._too_slow,
            finished=self._finished,
            broken=self.abort,
        )
        self._lock = threading.Lock()
        self._unanswered: dict[int, Cancellation] = {}
        self._last_id = 0
        self._watched = self._closed = self._half_closed = self._going_away = self._ending = False
        self._frame_begun: float | None = None
        self._incoming = 0  # bytes of the body that is on its way, if it is counted
        self._frames = 0  # that were whole when this one was begun
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, server.timeouts.receive_timeout)

    # Reading

    def read(self) -> None:
        """Read and answer until the connection is quiet, ended, or read by another thread. Holds the right to read."""
        self._guarded(self._read)

    def _guarded(self, reading: Callable[[], None]) -> None:
        try:
            reading()
        except ConnectionFaultError as fault:
            self._drop()
            self._fail(fault)
        except OSError:
            self._drop()
            self.abort()
        except Exception:
            log.exception("unexpected error on a connection")
            self._drop()  # should another thread read by now: it is about to be told the end, too
            self._fail(ConnectionFaultError(ConnectionFault.INTERNAL, "the server failed; its log says where"))

    def _read(self) -> None:
        decoder = self._decoder
        while True:
            if self._streams:
                if not self._read_stream():
                    return
                continue
            frame = decoder.next()
            if frame is None:
                if not self._receive():
                    return
                continue
            self._frame_begun = None
            if frame.type == _REQUEST:
                self._arrived()
                if not self._take_request(frame):
                    return
            elif not self._take_notice(frame):
                return

    def _receive(self, *, waits: bool = True) -> bool | None:
        """Wait for bytes; whether to go on reading. Without waiting None says that nothing came."""
        decoder = self._decoder
        if not decoder.mid_frame:
            self._frame_begun = None
        else:
            now = time.monotonic()
            if self._frame_begun is None or decoder.frames != self._frames:  # one that was passed over is whole too
                self._frame_begun, self._frames = now, decoder.frames
            elif now - self._frame_begun > self._server.timeouts.frame:
                raise self._unfinished()
        try:
            # The rest of a body in one call: the kernel wakes this thread once instead of for each segment.
            buffer = decoder.buffer()
            flags = (_WAIT_ALL if decoder.in_body else 0) if waits else _DONT_WAIT
            count = self._socket.recv_into(buffer, 0, flags)
        except BlockingIOError:
            if not waits:
                return None
            self._leave_to_event_loop()
            return False
        if not count:
            self._on_half_close()
            return False
        decoder.received(count)
        return True

    def _take_notice(self, frame: Frame) -> bool:
        """Handle what is no request; whether to go on reading."""
        if frame.type == FrameType.PING:
            self._post([encode_frame(Frame(FrameType.PONG, arg=frame.arg))], urgent=True)
        elif frame.type == FrameType.CANCEL and not self._cancel_held(frame.request_id):
            with self._lock:
                cancellation = self._unanswered.get(frame.request_id)
            if cancellation is not None:
                cancellation.cancel()
        elif frame.type == FrameType.ERROR:
            self._drop()
            self.abort()
            return False
        return True

    def _admit(self, header: Header) -> bool:
        # Without the lock: others only ever take away from what is under way.
        size = header.body_length
        kept = self._admission.admit(size)
        if not kept or size <= SMALL_BODY:
            return kept
        # The announced size counts: what has come of it may be all there in a moment.
        if not self._server.incoming.take(size):
            self._admission.refuse("the bodies that are on their way on all connections are too large together")
            return False
        self._incoming = size
        return True

    def _arrived(self) -> None:
        """The body is whole, or never will be: make room for others. For whoever holds the right to read."""
        if self._incoming:
            count, self._incoming = self._incoming, 0
            self._server.incoming.give(count)

    def _drop(self) -> None:
        """Nothing more is read; for whoever holds the right to, and keeps it for good."""
        self._decoder.drop()
        self._arrived()

    # Requests

    def _take_request(self, frame: Frame, known: Known | None = None) -> bool:
        """Answer a request on this thread; whether this thread still holds the right to read.

        Args:
            known: what is known of one that was not refused.
        """
        waits = False
        if known is None:
            if self._front is not None and self._hold_back(frame, []):
                return True
            if self._service.engine.crowded:
                early = self._reject_early(frame)
                if early is not None:
                    self._post(requests.respond(self._service, frame, early, self._client_max_frame)[0])
                    return True
                # A large body wakes the thread that reads it several times: it had better be the one that waits, too.
                waits = len(frame.body) <= SMALL_BODY and self._service.engine.longest_line >= LONG_LINE
        admission, cancellation = self._admission, Cancellation()
        held = known is not None and known.held
        received = known.received if known is not None and held else admission.received  # the next reader sets it anew
        with self._lock:
            refusal = (None if held else admission.refusal) or self._register(frame, cancellation)
            # What is held and may run now would not wake the event loop either.
            ahead = self._decoder.buffered or self._held_is_due()
            if refusal is None and not ahead and not waits:
                self._watch()
        if refusal is not None:
            self._post(requests.respond(self._service, frame, error_response(refusal), self._client_max_frame)[0])
            return True
        if waits:
            if self._wait(frame, received, cancellation):
                return True
            self._release_reader()
        elif ahead:
            self._server.workers.submit(self.read)
        answer = requests.handle(self._service, frame, received, cancellation, self.app)
        return self._answer(frame, answer)

    def _wait(self, frame: Frame, received: float, cancellation: Cancellation) -> bool:
        """Let a request wait for its model without a thread; False where that is not for it, or not now."""
        sender = Sender(self._server.queued_requests.begin, functools.partial(self._finish_queued, frame))
        waiting = requests.wait(self._service, frame, received, cancellation, sender)
        if waiting is None:
            return False
        if isinstance(waiting, ApiResponse):
            self._answer_later(frame, waiting)
        else:
            self._server.queued_requests.watch(waiting)
        return True

    def _finish_queued(self, frame: Frame, queued: QueuedRequest) -> None:
        try:
            self._answer_later(frame, requests.finish(queued))
        except Exception:
            log.exception("unexpected error on a connection")
            self.abort()

    def _answer_later(self, frame: Frame, answer: ApiResponse) -> None:
        """Answer a request that waited without a thread: neither the right to read nor the peer is waited for."""
        with self._lock:
            if self._front is frame:
                self._front = None
            self._admission.count -= 1
            self._admission.bytes -= len(frame.body)
        self._runners.give()
        self._post(requests.respond(self._service, frame, answer, self._client_max_frame)[0])
        self._answered(frame.request_id)
        if not self._unanswered:
            with self._lock:
                if self._watched and not self._closed:
                    self._set_timeouts()  # whoever left it to the event loop did not know when it would be idle

    def _reject_early(self, frame: Frame) -> ApiResponse | None:
        """The answer to a request that is not even read; None to go on."""
        # After GOAWAY nothing but SHUTTING_DOWN is an answer.
        if not self._service.engine.crowded or self._admission.refusal is not None or self._going_away:
            return None
        return requests.reject_early(self._service, frame, self._decoder.peek())

    def _register(self, frame: Frame, cancellation: Cancellation) -> ApiError | None:
        """Count a request as under way, if it is taken. Under the lock."""
        if self._going_away:
            return ApiError(ErrorCode.SHUTTING_DOWN, "the server is shutting down", retry_after_s=1.0)
        if not self._runners.take():
            text = "too many requests are under way on all connections; try again later"
            return ApiError(ErrorCode.QUEUE_FULL, text, retry_after_s=0.5)
        self._admission.count += 1
        self._admission.bytes += len(frame.body)
        self._unanswered[frame.request_id] = cancellation
        self._last_id = frame.request_id
        if self._front is None:
            self._front = frame
        return None

    def _answer(self, frame: Frame, answer: ApiResponse) -> bool:
        with self._lock:
            if self._front is frame:
                self._front = None
            holds = self._acquire_reader()
            self._admission.count -= 1
            self._admission.bytes -= len(frame.body)
        self._runners.give()
        chunks, size = requests.respond(self._service, frame, answer, self._client_max_frame)
        if not self._writer.post(chunks, size):
            # The peer is slow: others must be able to read while this thread waits for it.
            if holds:
                self._release_reader()
            self._writer.flush()
            with self._lock:
                holds = holds and self._acquire_reader()
        # By itself, without the lock; whoever says that no more is taken looks at what is unanswered after that.
        del self._unanswered[frame.request_id]
        if self._half_closed or self._going_away:
            self._end_if_answered()
        return holds

    def _end_if_answered(self) -> None:
        if not (self._half_closed or self._going_away):
            return
        with self._lock:
            ends = self._may_end()
        if ends:
            self._finish()

    def _may_end(self) -> bool:
        """Return whether all is answered, and nobody was told so before. Under the lock, when no more is taken."""
        if self._unanswered or self._ending:
            return False
        self._ending = True
        return True

    # The right to read

    def _release_reader(self) -> None:
        """Let another thread read what comes while this one is busy."""
        if self._decoder.buffered:
            # These bytes are here already: the event loop would never hear of them.
            self._server.workers.submit(self.read)
            return
        with self._lock:
            self._watch()

    def _watch(self) -> None:
        """Let the event loop tell of what comes. Under the lock, for whoever lays the right to read down."""
        if self._closed:
            self._drop()
            return
        self._watched = True
        self._event_loop.arm(self.descriptor)

    def _acquire_reader(self) -> bool:
        """Read again, unless another thread does by now. Under the lock."""
        if not self._watched or self._closed:
            return False
        self._watched = False
        # Else the event loop would wake up with us at the next request.
        self._event_loop.disarm(self.descriptor)
        return True

    def _leave_to_event_loop(self) -> None:
        """Nothing came for a while: the event loop waits for this connection, and this thread is free."""
        self._decoder.rest()
        with self._lock:
            self._leave_under_lock()

    def _leave_under_lock(self) -> None:
        if self._closed:
            self._drop()
            return
        self._watched = True
        self._set_timeouts()
        self._event_loop.arm(self.descriptor)

    def _set_timeouts(self) -> None:
        """Say how long is waited for what comes. Under the lock, while the event loop has the right to read."""
        timeouts = self._server.timeouts
        if self._frame_begun is not None:
            self._event_loop.set_timer(self, self._frame_begun + timeouts.frame)
        elif not self._unanswered:
            idle = self._server.limits.idle_ms / 1000
            self._event_loop.set_timer(self, time.monotonic() + idle - timeouts.quiet)

    def on_ready(self, events: int) -> None:
        """Bytes came while nobody was reading, or the connection broke."""
        with self._lock:
            broken = self._half_closed and bool(events & BROKEN)
            if self._closed or not (self._watched or broken):
                return
            self._watched = False
        if broken:
            return self.abort()
        self._event_loop.set_timer(self, None)
        if self._streams:
            self._guarded(self._glance)
        else:
            self._server.workers.submit(self.read)
        return None

    def _glance(self) -> None:
        if self._sift():
            self._server.workers.submit(self.read)

    def on_time(self) -> None:
        """Nothing came for so long that the connection is closed."""
        with self._lock:
            if self._closed or not self._watched or (self._unanswered and self._frame_begun is None):
                return
            self._watched = False
            self._going_away = self._ending = True
        self._drop()
        if self._frame_begun is not None:
            self._fail(self._unfinished())
        else:
            self._finish(self._goaway(GoAwayReason.IDLE, "nothing was asked for a long time"))

    def on_fault(self) -> None:
        """The loop failed on this connection."""
        self.abort()

    # The end

    def go_away(self) -> None:
        """Take no more requests; close once those under way are answered."""
        with self._lock:
            if self._going_away or self._closed:
                return
            self._going_away = True
            ends = self._may_end()
        frame = self._goaway(GoAwayReason.SHUTTING_DOWN, "the server is shutting down")
        if ends:
            self._finish(frame)
        else:
            self._post([frame], urgent=True)

    def _goaway(self, reason: GoAwayReason, text: str) -> bytes:
        body = json.dumps({"error": text, "code": reason.name}).encode("ascii")
        return json_frame(FrameType.GOAWAY, body, request_id=self._last_id, arg=reason)

    def _on_half_close(self) -> None:
        mid_frame = self._decoder.mid_frame
        self._drop()
        if mid_frame:
            return self.abort()
        with self._lock:
            if self._closed:
                return None
            self._half_closed = True
            self._event_loop.disarm(self.descriptor)  # and hear of it when the rest breaks
            ends = self._may_end()
        if ends:
            self._finish()
        return None

    def _post(self, chunks: list[bytes | memoryview], *, urgent: bool = False) -> None:
        """Send a small frame from a thread that must not wait."""
        if not self._writer.post(chunks, sum(map(len, chunks)), urgent=urgent):
            self._server.workers.submit(self._writer.flush)

    def _fail(self, fault: ConnectionFaultError) -> None:
        """Say what the peer did wrong, and close."""
        log.debug("closing a connection: %s", fault.message)
        self._cancel_all()
        self._finish(json_frame(FrameType.ERROR, fault.body(), arg=fault.fault))

    def _finish(self, frame: bytes = b"") -> None:
        if not self._writer.finish(frame):
            self._server.workers.submit(self._writer.flush)

    def _finished(self) -> None:
        """The last byte was handed to the system: let the peer read it before the connection is gone."""
        with self._lock:
            if self._closed:
                return
            self._close()
        LingeringClose.begin(self._server, self._socket)
        self._server.forget(self)

    def _too_slow(self) -> None:
        log.debug("closing a connection: %s", ConnectionFault.SLOW_READER.name)
        self.abort()

    def abort(self) -> None:
        """Close at once; what the system still holds for the peer is dropped."""
        with self._lock:
            if self._closed:
                return
            self._close()
        self._writer.drop()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        except OSError:
            pass
        self._socket.close()
        self._cancel_all()
        self._server.forget(self)

    def _close(self) -> None:
        """The last part, under the lock. No cycle may outlive it: a body would stay until the collector comes by."""
        self._closed = True
        self._event_loop.remove(self.descriptor, self)
        if self._watched:  # nobody reads and nobody will; else the one who reads drops it, as he finds us closed
            self._watched = False
            self._drop()

    def _cancel_all(self) -> None:
        with self._lock:
            running = list(self._unanswered.values())
        for cancellation in running:
            cancellation.cancel()

    def _unfinished(self) -> ConnectionFaultError:
        text = f"a frame must be whole within {self._server.timeouts.frame:g} s"
        return ConnectionFaultError(ConnectionFault.TIMEOUT, text)
