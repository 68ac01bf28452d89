"""A connection of the socket protocol: concurrent requests without a thread of its own.

A thread that waits for an answer reads the connection, and hands other answers to their
threads. With one caller nothing ever changes threads. When the reader's own answer has
arrived, another waiting thread becomes the reader.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pocketserve_client import handshake
from pocketserve_client.bounded import answer_too_large
from pocketserve_client.errors import (
    FROZEN,
    ConnectionLostError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client.transport import JSON, OCTETS, Answer, Request
from pocketserve_wire.errors import ConnectionFaultError
from pocketserve_wire.frames import (
    CRITICAL,
    MAX_CHUNKS,
    Chunk,
    Extension,
    Frame,
    FrameType,
    encode_frame,
    encode_head,
    rest_of,
)
from pocketserve_wire.handshake import MAX_U32

PING_AFTER_S: Final = 5.0
"""Silence before a PING; after the same time again the server counts as dead."""

MAX_ANSWER_BYTES: Final = 2**31 - 1
SUCCESS: Final = 200
CANCEL_TIMEOUT_S: Final = 0.1  # limit of waiting for other writers to send a CANCEL
STALE_AFTER_S: Final = 1.0
"""Idle time before a connection is checked: the server may have closed it."""


class PendingAnswer:
    """A request in progress on a connection.

    Attributes:
        parts: bytes of the answer's body that came before its RESPONSE and were not
            taken yet.
        answer: the answer, without parts that were taken.
    """

    __slots__ = ("_connection", "_size", "answer", "error", "parts", "request_id")

    def __init__(self, connection: ClientConnection, request_id: int) -> None:
        self._connection = connection
        self._size = 0
        self.request_id = request_id
        self.parts: deque[bytes | memoryview] = deque()
        self.answer: Answer | None = None
        self.error: Exception | None = None

    def is_done(self) -> bool:
        """Return whether the answer or an error has arrived."""
        return self.answer is not None or self.error is not None

    def has_news(self) -> bool:
        """Return whether a part, the answer or an error has arrived."""
        return bool(self.parts) or self.is_done()

    def add_part(self, body: bytes | memoryview, max_bytes: int) -> bool:
        """Keep a part; return False if the answer is too large."""
        self._size += len(body)
        if self._size > max_bytes:
            return False
        self.parts.append(body)
        return True

    def next_part(self, timeout: float) -> bytes | memoryview | None:
        """Wait for the next part and take it; None after the last one.

        Raises:
            ServerUnreachableError: the connection broke, or nothing came in time.
        """
        if not self.has_news():
            self._connection.wait(self, timeout, self.has_news)
        part = self._connection.take_part(self)
        if part is None and self.answer is None:
            assert self.error is not None
            raise self.error
        return part

    def abandon(self) -> None:
        """Cancel the request, and wake the thread that waits for it."""
        self._connection.abandon(self)

    def cancel(self) -> None:
        """Ask the server not to start the request."""
        if not self.is_done():
            self._connection.send_cancel(self.request_id)

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer; by default for the connection's timeout."""
        if not self.is_done():
            self._connection.wait(self, timeout)
        if self.answer is None:
            assert self.error is not None
            raise self.error
        return self.answer


class ClientConnection:
    """An authenticated connection.

    See :func:`pocketserve_client.handshake.open_connection`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        key: bytes | None,
        timeout: float,
        max_answer: int = MAX_ANSWER_BYTES,
        connect_s: float | None = None,
    ) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self._timeout = timeout
        self._max_answer = max_answer
        seconds = timeout if connect_s is None else connect_s
        self._socket, self._decoder, self.limits = handshake.open_connection(
            address, key, seconds, max_answer
        )
        # SO_RCVTIMEO, because Python's own timeout would add a poll() to each read.
        self._socket.setblocking(True)
        timeval = struct.pack("@ll", *divmod(round(PING_AFTER_S * 1e6), 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._state = threading.RLock()  # a finalizer may run while it is held
        self._pending: dict[int, PendingAnswer] = {}
        self._waiting: dict[threading.Event, Callable[[], bool]] = {}
        self._last_id = 0
        self._last_read = self._last_use = time.monotonic()
        self._pinged = False
        self._closed: Exception | None = None
        self._leaving = False
        self._take_all(False)  # frames that arrived together with READY

    # Sending

    @property
    def usable(self) -> bool:
        """Return whether the connection accepts requests; check it if it was idle."""
        if self._closed is not None or self._leaving or self._last_id >= MAX_U32:
            return False
        if time.monotonic() - self._last_use > STALE_AFTER_S:
            self._read_pending_frames()
        return self._closed is None and not self._leaving

    def _read_pending_frames(self) -> None:
        """Read everything that has arrived, unless another thread is reading."""
        if not self._reading.acquire(blocking=False):
            return
        deadline = time.monotonic() + STALE_AFTER_S  # for a peer that sends for ever
        try:
            while self._closed is None and time.monotonic() < deadline:
                if not self._poll(select.POLLIN, 0):
                    break
                self._read_some()
        finally:
            self._stop_reading()

    def start(self, request: Request) -> PendingAnswer:
        """Send a request.

        Raises:
            ServerError: BODY_TOO_LARGE; nothing was sent.
            ServerUnreachableError: too many requests were in progress for too long.
        """
        deadline = time.monotonic() + request.seconds_left(self._timeout)
        size, limit = request.body_length, self.limits.max_frame
        if size > limit:
            raise ServerError(
                413,
                "BODY_TOO_LARGE",
                f"the body has {size} bytes, the server accepts {limit}",
            )
        frame = _request_frame(request)
        while True:
            self._lock_for_writing(deadline)
            try:
                pending = self._register(frame)
                if pending is not None:
                    self._send([encode_head(frame, size), *request.chunks], deadline)
                    self._last_use = time.monotonic()
                    return pending
            finally:
                self._writing.release()

    def _lock_for_writing(self, deadline: float) -> None:
        """Wait until another request fits, then acquire the writing lock."""
        has_room = self._has_room() or self._read_until(self._has_room, deadline)
        left = max(0.0, deadline - time.monotonic())
        if not has_room or not self._writing.acquire(timeout=left):
            raise ServerUnreachableError(
                f"{self._name} was not ready for this request for {self._timeout:g} s"
            )

    def _has_room(self) -> bool:
        return len(self._pending) < self.limits.max_inflight or self._closed is not None

    def _register(self, frame: Frame) -> PendingAnswer | None:
        """Assign the next request id; None if another thread took the last slot."""
        with self._state:
            if self._closed is not None:
                raise self._closed
            if not self._has_room():
                return None
            self._last_id += 1
            frame.request_id = self._last_id
            pending = self._pending[self._last_id] = PendingAnswer(self, self._last_id)
            return pending

    def send_cancel(self, request_id: int) -> None:
        """Ask the server not to start a request, which is answered anyway."""
        if not self._leaving:
            frame = Frame(FrameType.CANCEL, request_id=request_id)
            self._send_control(frame, CANCEL_TIMEOUT_S)

    def _send_control(self, frame: Frame, timeout: float = 0.0) -> bool:
        """Send a control frame unless that would block; return whether it was sent."""
        if not self._writing.acquire(timeout=timeout):
            return False
        try:
            data = encode_frame(frame)
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
            self._send(rest_of([data], sent), time.monotonic() + self._timeout)
            return True
        except OSError:
            return False  # full, or broken or closed, which the reader will notice
        finally:
            self._writing.release()

    def retire(self) -> None:
        """Start no more requests, and close when none is in progress."""
        self._leaving = True
        self._close_if_done()

    def close(self) -> None:
        """Close; all requests in progress fail."""
        self._fail(ConnectionLostError("the client was closed"))

    def forget(self) -> None:
        """Drop the connection in a forked process, without effect on the parent.

        Nothing is shut down, and no lock is taken: a thread of the parent may hold it.
        """
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._state = threading.RLock()
        self._closed = ConnectionLostError(
            f"the connection to {self._name} belongs to the process that was forked"
        )
        for pending in self._pending.values():
            pending.error = self._closed
        self._socket.close()

    def _send(self, chunks: list[Chunk], deadline: float) -> None:
        """Write all chunks; read meanwhile if the server doesn't accept data.

        Otherwise both sides could wait for each other.
        """
        while chunks:
            try:
                sent = self._socket.sendmsg(
                    chunks[:MAX_CHUNKS], [], socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                self._await_writable(deadline)
            except OSError as error:
                raise self._fail(self._lost_error(error)) from None
            else:
                chunks = rest_of(chunks, sent)

    def _await_writable(self, deadline: float) -> None:
        reads = self._reading.acquire(blocking=False)
        mask = select.POLLOUT
        if reads:
            mask |= select.POLLIN
        try:
            events = self._poll(mask, max(0.0, deadline - time.monotonic()))
            if reads and events & ~select.POLLOUT:
                self._read_some(writing=True)
        finally:
            if reads:
                self._stop_reading()
        if not events:
            text = f"{self._name} accepted no data for {self._timeout:g} s; {FROZEN}"
            raise self._fail(ConnectionLostError(text))
        if self._closed is not None:
            raise self._closed

    # Waiting and reading

    def wait(
        self,
        pending: PendingAnswer,
        timeout: float | None,
        finished: Callable[[], bool] | None = None,
    ) -> None:
        """Wait until the request has its answer or error; cancel it on timeout.

        Args:
            finished: ends the wait; by default the answer or an error.
        """
        timeout = self._timeout if timeout is None else timeout
        finished = finished or pending.is_done
        if self._read_until(finished, time.monotonic() + timeout):
            return
        text = f"{self._name} did not answer within {timeout:.3g} s; {FROZEN}"
        self._give_up(pending, ServerUnreachableError(text))

    def take_part(self, pending: PendingAnswer) -> bytes | memoryview | None:
        """Return the oldest part that nobody took yet, if any."""
        with self._state:  # the reader may be joining parts and answer
            return pending.parts.popleft() if pending.parts else None

    def abandon(self, pending: PendingAnswer) -> None:
        """Give a request up; its waiting thread gets an error."""
        text = f"the request to {self._name} was cancelled"
        self._give_up(pending, ServerUnreachableError(text))

    def _give_up(self, pending: PendingAnswer, error: Exception) -> None:
        with self._state:
            if self._pending.pop(pending.request_id, None) is None:
                return
            pending.error = error
        self._wake(finished=True)
        self.send_cancel(pending.request_id)

    def _read_until(self, finished: Callable[[], bool], deadline: float) -> bool:
        """Read until ``finished``, or wait while others read; False on timeout."""
        try:
            while not finished():
                if time.monotonic() >= deadline:
                    return False
                if not self._reading.acquire(blocking=False):
                    self._wait_beside(finished, deadline)
                    continue
                try:
                    self._read_as_reader(finished, deadline)
                finally:
                    self._stop_reading()
            return True
        finally:
            # This thread may have been chosen as the next reader: choose another one.
            if self._waiting and not self._reading.locked():
                self._wake(finished=False)

    def _read_as_reader(self, finished: Callable[[], bool], deadline: float) -> None:
        """Read until ``finished`` or the deadline. The caller is the reader."""
        while not finished():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if left >= PING_AFTER_S or self._poll(select.POLLIN, left):
                self._read_some()

    def _wait_beside(self, finished: Callable[[], bool], deadline: float) -> None:
        """Wait while another thread reads, until finished or chosen as the reader."""
        event = threading.Event()
        with self._state:
            self._waiting[event] = finished
        try:
            if not finished() and self._reading.locked():
                event.wait(max(0.0, deadline - time.monotonic()))
        finally:
            with self._state:
                del self._waiting[event]

    def _stop_reading(self) -> None:
        self._reading.release()
        if self._closed is not None:
            self._socket.close()
        if self._leaving:
            self._close_if_done()
        self._wake(finished=False)

    def _close_if_done(self) -> None:
        if not self._pending:
            text = f"{self._name} accepted no more requests on this connection"
            self._fail(ConnectionLostError(text))

    def _wake(self, *, finished: bool) -> None:
        """Wake all finished threads, or one of the others to become the reader."""
        if not self._waiting:
            return
        events = []
        with self._state:
            for event, check in self._waiting.items():
                if check() is finished:
                    events.append(event)
        if not finished:
            events = events[:1]
        for event in events:
            event.set()

    def _read_some(self, *, writing: bool = False) -> None:
        """Read once and handle the complete frames. The caller is the reader."""
        try:
            count = self._socket.recv_into(self._decoder.buffer())
        except BlockingIOError:
            self._check_silence(writing)
            return
        except OSError as error:
            self._fail(self._lost_error(error))
            return
        if not count:
            self._fail(ConnectionLostError(f"{self._name} closed the connection"))
            return
        self._last_read = time.monotonic()
        self._pinged = False
        self._decoder.received(count)
        self._take_all(writing)
        self._wake(finished=True)

    def _check_silence(self, writing: bool) -> None:
        """Send a PING to a silent server, or fail if the last one failed."""
        silent = time.monotonic() - self._last_read
        if self._pinged and silent >= 2 * PING_AFTER_S:
            text = f"{self._name} sent nothing for {silent:.0f} s; {FROZEN}"
            self._fail(ConnectionLostError(text))
        elif not writing:
            self._pinged = self._send_control(Frame(FrameType.PING, arg=1))

    def _take_all(self, writing: bool) -> None:
        try:
            while (frame := self._decoder.next()) is not None:
                self._take(frame, writing)
        except ConnectionFaultError as fault:
            text = f"{self._name} violated the protocol: {fault.message}"
            self._fail(ServerUnreachableError(text))

    def _take(self, frame: Frame, writing: bool) -> None:
        if frame.type == FrameType.RESPONSE:
            # One step under the lock: a thread that times out sees either state.
            with self._state:
                pending = self._pending.pop(frame.request_id, None)
                if pending is not None:  # else its caller has given up
                    _finish(pending, frame)
        elif frame.type == FrameType.PART:
            self._take_part(frame)
        elif frame.type == FrameType.PING and not writing:
            self._send_control(Frame(FrameType.PONG, arg=frame.arg))
        elif frame.type == FrameType.GOAWAY:
            self._leave(frame.request_id)
        elif frame.type == FrameType.ERROR:
            self._fail(handshake.named_error(frame))

    def _leave(self, last_answered: int) -> None:
        """Fail the requests that a closing server won't answer; they may be retried."""
        self._leaving = True
        with self._state:
            for number in list(self._pending):
                if number > last_answered:
                    text = f"{self._name} is closing this connection"
                    pending = self._pending.pop(number, None)
                    if pending is not None:
                        pending.error = ConnectionLostError(text)

    def _take_part(self, frame: Frame) -> None:
        """Keep a part of an answer, or give up a request whose answer is too large."""
        with self._state:
            pending = self._pending.get(frame.request_id)
            if pending is None or pending.add_part(frame.body, self._max_answer):
                return
        self._give_up(pending, answer_too_large())

    def _lost_error(self, error: OSError) -> ConnectionLostError:
        return ConnectionLostError(
            f"the connection to {self._name} broke ({error.strerror or error})"
        )

    def _fail(self, error: Exception) -> Exception:
        """Close, and fail all requests; return the error that closed the connection."""
        with self._state:
            if self._closed is None:
                self._closed = error
            for pending in self._pending.values():
                pending.error = self._closed
            self._pending.clear()
        with contextlib.suppress(OSError):  # not connected any more
            # Unlike close(), this wakes a thread that is reading.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wake(finished=True)
        if self._reading.acquire(blocking=False):
            self._socket.close()
            self._reading.release()
        return self._closed

    def _poll(self, mask: int, seconds: float) -> int:
        """Return the connection's events within the time; 0 for none."""
        poller = select.poll()
        try:
            poller.register(self._socket, mask)
        except ValueError:  # closed by another thread, as its next use will report
            return select.POLLNVAL
        events = poller.poll(1000 * seconds)
        return events[0][1] if events else 0


def _request_frame(request: Request) -> Frame:
    milliseconds = 0  # no limit
    if request.wait is not None:
        milliseconds = min(max(1, round(1000 * request.wait)), MAX_U32)
    frame = Frame(
        FrameType.REQUEST,
        arg=milliseconds,
        target=f"{request.method} {request.path}".encode("ascii"),
        json_length=request.json_length,
    )
    if request.content_type not in (JSON, OCTETS):
        frame.ext = {Extension.CONTENT_TYPE: request.content_type.encode("ascii")}
    return frame


def _finish(pending: PendingAnswer, frame: Frame) -> None:
    unknown = [tag for tag in frame.ext if tag & CRITICAL]
    if unknown:
        text = (
            f"the answer has the critical extension {unknown[0]}, which this client "
            "does not support"
        )
        pending.error = ServerError(501, "NOT_IMPLEMENTED", text)
        return
    json_length = frame.json_length if frame.json_length < len(frame.body) else None
    label = frame.ext.get(Extension.CONTENT_TYPE)
    if label is not None:
        content_type = label.decode("ascii")
    elif json_length is None:
        content_type = JSON
    else:
        content_type = OCTETS
    body = memoryview(frame.body).toreadonly()
    if pending.parts and frame.arg == SUCCESS:
        # Nobody takes the parts, so that the answer has all of its body.
        body = memoryview(b"".join((*pending.parts, body)))
        pending.parts.clear()
    pending.answer = Answer(frame.arg, body, json_length, content_type)
