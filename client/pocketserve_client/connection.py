"""One connection of the socket protocol: many requests at a time, and no thread of its own.

Whoever waits for an answer reads the connection, and hands the others what is theirs: with one caller nothing ever
changes threads. The reader gives the reading on to another waiting caller when its own answer has come.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

from pocketserve_client import handshake
from pocketserve_client.errors import ConnectionLostError, ServerError, ServerUnreachableError
from pocketserve_client.transport import JSON, OCTETS, Answer, Request
from pocketserve_wire.faults import ConnectionFaultError
from pocketserve_wire.frames import CRITICAL, Extension, Frame, FrameType, encode_frame, encode_head

PING_AFTER_S: Final = 5.0
"""Silence after which a waiting caller asks whether the server still lives; as much again, and it counts as dead."""

MAX_ANSWER_BYTES: Final = 2**31 - 1
MAX_REQUEST_ID: Final = 2**32 - 1
CONTROL_PATIENCE_S: Final = 0.1
"""How long a caller who cancels waits for others to finish writing."""
STALE_AFTER_S: Final = 1.0
"""A connection unused for so long is looked at before it is used: the server may have closed it."""

_MAX_SENT_PIECES: Final = 512
_TIMEVAL = struct.Struct("@ll")


class PendingAnswer:
    """A request on its way. See :class:`pocketserve_client.transport.Pending`."""

    __slots__ = ("_connection", "answer", "error", "request_id", "timeout")

    def __init__(self, connection: Connection, request_id: int, timeout: float) -> None:
        self._connection = connection
        self.request_id = request_id
        self.timeout = timeout
        self.answer: Answer | None = None
        self.error: Exception | None = None

    def done(self) -> bool:
        """Return whether the answer, or the failure, is there."""
        return self.answer is not None or self.error is not None

    def cancel(self) -> None:
        """Ask the server not to start on it."""
        if not self.done():
            self._connection.send_cancel(self.request_id)

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer.

        Raises:
            ServerUnreachableError: none came.
        """
        if not self.done():
            self._connection.wait(self, self.timeout if timeout is None else timeout)
        if self.answer is None:
            assert self.error is not None
            raise self.error
        return self.answer

    def finish(self, answer: Answer | None, error: Exception | None = None) -> None:
        """Called by whoever reads the connection, who then wakes those that wait."""
        self.answer, self.error = answer, error


class Connection:
    """A connection whose handshake is done.

    Args:
        address: host and port.
        key: the token's ASCII bytes; None sends no proof.
        timeout: seconds for connecting and for each answer.
        max_answer: bytes of the largest answer that is taken.

    Raises:
        ServerUnreachableError: nobody listens, or the handshake was not finished in time.
        NotOurServerError: what listens could not prove that it knows the token.
        ServerError: UNAUTHORIZED, the server does not know this token; or another fault that it named.
    """

    def __init__(
        self, address: tuple[str, int], key: bytes | None, timeout: float, max_answer: int = MAX_ANSWER_BYTES
    ) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self._timeout = timeout
        self._socket, self._decoder, self.limits = handshake.connect(address, key, timeout, max_answer)
        # Blocking calls that return after a while: a timeout of Python's own would cost a poll() with each read.
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(PING_AFTER_S))
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._state = threading.Lock()
        self._pending: dict[int, PendingAnswer] = {}
        self._waiting: dict[threading.Event, Callable[[], bool]] = {}
        self._last_id = 0
        self._heard = self._used = time.monotonic()
        self._pinged = False
        self._closed: Exception | None = None
        self._leaving = False

    # Sending

    @property
    def usable(self) -> bool:
        """Return whether new requests may be started. A connection that rested is looked at first."""
        if self._closed is not None or self._leaving or self._last_id >= MAX_REQUEST_ID:
            return False
        if time.monotonic() - self._used > STALE_AFTER_S and self._reading.acquire(blocking=False):
            ends = time.monotonic() + STALE_AFTER_S  # for a peer that never ceases to talk
            try:
                while self._closed is None and time.monotonic() < ends and _readable(self._socket, 0):
                    self._read_some()
            finally:
                self._stop_reading()
        return self._closed is None and not self._leaving

    def start(self, request: Request) -> PendingAnswer:
        """Send a request.

        Raises:
            ServerError: BODY_TOO_LARGE, before anything is sent.
            ServerUnreachableError: it could not be sent.
        """
        ends = time.monotonic() + self._timeout
        size = request.body_length
        if size > self.limits.max_frame:
            raise ServerError(
                413, "BODY_TOO_LARGE", f"the body has {size} bytes, the server takes {self.limits.max_frame}"
            )
        frame = Frame(
            FrameType.REQUEST,
            arg=_milliseconds(request.wait),
            target=f"{request.method} {request.path}".encode("ascii"),
            json_length=request.json_length,
        )
        if request.content_type not in (JSON, OCTETS):
            frame.ext = {Extension.CONTENT_TYPE: request.content_type.encode("ascii")}
        while True:
            if not self._read_until(self._has_room, ends) or not self._writing.acquire(
                timeout=max(0.0, ends - time.monotonic())
            ):
                raise ServerUnreachableError(f"{self._name} was not ready for this request for {self._timeout:g} s")
            try:
                pending = self._register(frame)
                if pending is not None:
                    self._send([encode_head(frame, size), *request.chunks])
                    self._used = time.monotonic()
                    return pending
            finally:
                self._writing.release()

    def _has_room(self) -> bool:
        return len(self._pending) < self.limits.max_inflight or self._closed is not None

    def _register(self, frame: Frame) -> PendingAnswer | None:
        """Give the request its id; None when another thread has taken the last room. Ids go out in order."""
        with self._state:
            if self._closed is not None:
                raise self._closed
            if not self._has_room():
                return None
            self._last_id += 1
            frame.request_id = self._last_id
            pending = self._pending[self._last_id] = PendingAnswer(self, self._last_id, self._timeout)
            return pending

    def send_cancel(self, request_id: int) -> None:
        """Ask the server not to start on a request; it is answered all the same."""
        if not self._leaving:
            self._send_small(Frame(FrameType.CANCEL, request_id=request_id), CONTROL_PATIENCE_S)

    def _send_small(self, frame: Frame, timeout: float = 0.0) -> bool:
        """Send a frame of control, unless others are writing for longer, or the server does not read."""
        if not self._writing.acquire(timeout=timeout):
            return False
        try:
            if self._closed is not None:
                return False
            data = encode_frame(frame)
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT)
            except OSError:
                return False  # full; or broken, which whoever reads will see
            if sent < len(data):
                self._send([data[sent:]])
            return True
        finally:
            self._writing.release()

    def retire(self) -> None:
        """Start nothing new, and close as soon as nothing is under way."""
        self._leaving = True
        self._close_if_done()

    def close(self) -> None:
        """Close; everything under way fails."""
        self._fail(ConnectionLostError("the client was closed"))

    def forget(self) -> None:
        """In a forked process: leave the connection to the other one, which does not notice. Nothing is under way here.

        No lock is taken, since a thread that is not here may have held it, and nothing is shut down.
        """
        self._reading, self._writing, self._state = threading.Lock(), threading.Lock(), threading.Lock()
        self._waiting = {}
        self._closed = ConnectionLostError(f"the connection to {self._name} belongs to the process that was forked")
        for pending in self._pending.values():
            pending.finish(None, self._closed)
        self._pending = {}
        self._socket.close()

    def _send(self, chunks: list[bytes | memoryview]) -> None:
        """Write everything; reads meanwhile when the server does not take it, so that neither side waits for ever."""
        ends = time.monotonic() + self._timeout
        rest = [memoryview(chunk) for chunk in chunks if len(chunk)]
        while rest:
            try:
                sent = self._socket.sendmsg(rest[:_MAX_SENT_PIECES], [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._await_writable(ends)
                continue
            except OSError as error:
                raise self._fail(self._lost(error)) from None
            rest = _after(rest, sent)

    def _await_writable(self, ends: float) -> None:
        reads = self._reading.acquire(blocking=False)
        try:
            wanted = select.POLLOUT | (select.POLLIN if reads else 0)
            events = _poll(self._socket, wanted, max(0.0, ends - time.monotonic()))
            if reads and events & ~select.POLLOUT:
                self._read_some(writing=True)
        finally:
            if reads:
                self._stop_reading()
        if not events:
            raise self._fail(ConnectionLostError(f"{self._name} took no data for {self._timeout:g} s"))
        if self._closed is not None:
            raise self._closed

    # Waiting and reading

    def wait(self, pending: PendingAnswer, timeout: float) -> None:
        """Return once the request is answered or has failed.

        Raises:
            ServerUnreachableError: no answer within ``timeout`` seconds; the request is cancelled.
        """
        if self._read_until(pending.done, time.monotonic() + timeout):
            return
        error = ServerUnreachableError(f"{self._name} did not answer within {timeout:g} s")
        with self._state:
            given_up = self._pending.pop(pending.request_id, None)
        if given_up is not None:
            pending.finish(None, error)
            self._wake_done()
            self.send_cancel(pending.request_id)

    def _read_until(self, done: Callable[[], bool], ends: float) -> bool:
        """Read, or wait while others read, until something has happened; whether it has before the time was over."""
        try:
            while not done():
                if time.monotonic() >= ends:
                    return False
                if self._reading.acquire(blocking=False):
                    try:
                        while not done() and time.monotonic() < ends:
                            self._read_before(ends)
                    finally:
                        self._stop_reading()
                else:
                    self._wait_beside(done, ends)
            return True
        finally:
            # Whoever leaves may have been chosen to read next: the choice must not end with it.
            if self._waiting and not self._reading.locked():
                self._wake_another()

    def _wait_beside(self, done: Callable[[], bool], ends: float) -> None:
        """Wait while somebody else reads, until it has happened or the reading is given on."""
        wake = threading.Event()
        with self._state:
            self._waiting[wake] = done
        try:
            if not done() and self._reading.locked():
                wake.wait(max(0.0, ends - time.monotonic()))
        finally:
            with self._state:
                del self._waiting[wake]

    def _stop_reading(self) -> None:
        self._reading.release()
        if self._closed is not None:
            self._socket.close()
        self._close_if_done()
        self._wake_another()

    def _close_if_done(self) -> None:
        with self._state:
            done = self._leaving and not self._pending
        if done:
            self._fail(ConnectionLostError(f"{self._name} took no more requests on this connection"))

    def _wake_another(self) -> None:
        """Let one of those who wait beside take over the reading."""
        if self._waiting:
            with self._state:
                wake = next((wake for wake, done in self._waiting.items() if not done()), None)
            if wake is not None:
                wake.set()

    def _wake_done(self) -> None:
        """Wake those for whom it has happened."""
        if self._waiting:
            with self._state:
                woken = [wake for wake, done in self._waiting.items() if done()]
            for wake in woken:
                wake.set()

    def _read_before(self, ends: float) -> None:
        left = ends - time.monotonic()
        if left < PING_AFTER_S and not _readable(self._socket, max(0.0, left)):
            return
        self._read_some()

    def _read_some(self, *, writing: bool = False) -> None:
        """One read, and all frames that it completes. The caller holds the reading."""
        try:
            count = self._socket.recv_into(self._decoder.buffer())
        except BlockingIOError:
            self._ask_for_life(writing)
            return
        except OSError as error:
            self._fail(self._lost(error))
            return
        if not count:
            self._fail(ConnectionLostError(f"{self._name} closed the connection"))
            return
        self._heard = time.monotonic()
        self._pinged = False
        self._decoder.received(count)
        try:
            while (frame := self._decoder.next()) is not None:
                self._take(frame, writing)
        except ConnectionFaultError as fault:
            self._fail(ServerUnreachableError(f"{self._name} does not keep to the protocol: {fault.message}"))
        self._wake_done()

    def _ask_for_life(self, writing: bool) -> None:
        silent = time.monotonic() - self._heard
        if self._pinged and silent >= 2 * PING_AFTER_S:
            self._fail(ConnectionLostError(f"{self._name} gave no sign of life for {silent:.0f} s"))
        elif not writing:
            self._pinged = self._send_small(Frame(FrameType.PING, arg=1))

    def _take(self, frame: Frame, writing: bool) -> None:
        if frame.type == FrameType.RESPONSE:
            with self._state:  # taken out and finished at once: who gives up sees either
                pending = self._pending.pop(frame.request_id, None)
                if pending is not None:  # else nobody waits for it any more
                    _finish(pending, frame)
        elif frame.type == FrameType.PING and not writing:
            self._send_small(Frame(FrameType.PONG, arg=frame.arg))
        elif frame.type == FrameType.GOAWAY:
            self._leave(frame.request_id)
        elif frame.type == FrameType.ERROR:
            self._fail(handshake.named_error(frame))

    def _leave(self, last_id: int) -> None:
        """The server takes nothing new: what it will not answer can be sent again elsewhere."""
        self._leaving = True
        with self._state:
            for number in [number for number in self._pending if number > last_id]:
                self._pending.pop(number).finish(None, ConnectionLostError(f"{self._name} is closing this connection"))

    def _lost(self, error: OSError) -> ConnectionLostError:
        return ConnectionLostError(f"the connection to {self._name} broke ({error.strerror or error})")

    def _fail(self, error: Exception) -> Exception:
        """Close, and let everything under way end with ``error``; returns what the connection ended with."""
        with self._state:
            if self._closed is None:
                self._closed = error
            for pending in self._pending.values():
                pending.finish(None, self._closed)
            self._pending.clear()
        # shutdown() wakes a thread that is reading; close() alone would leave it asleep.
        _shut_down(self._socket)
        self._wake_done()
        if self._reading.acquire(blocking=False):
            self._socket.close()
            self._reading.release()
        return self._closed


def _finish(pending: PendingAnswer, frame: Frame) -> None:
    unknown = [tag for tag in frame.ext if tag & CRITICAL]
    if unknown:
        text = f"the answer carries extension {unknown[0]}, which this client must understand to read it"
        pending.finish(None, ServerError(501, "NOT_IMPLEMENTED", text))
    else:
        pending.finish(_answer(frame))


def _answer(frame: Frame) -> Answer:
    length = len(frame.body)
    body = memoryview(frame.body).toreadonly()
    given = frame.ext.get(Extension.CONTENT_TYPE)
    content_type = given.decode("ascii") if given is not None else JSON if frame.json_length == length else OCTETS
    return Answer(frame.arg, body, frame.json_length if frame.json_length < length else None, content_type)


def _milliseconds(seconds: float | None) -> int:
    """A wait as a frame carries it: 0 would mean that there is none."""
    return 0 if seconds is None else min(max(1, round(1000 * seconds)), 2**32 - 1)


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))


def _readable(connected: socket.socket, seconds: float) -> bool:
    return _poll(connected, select.POLLIN, seconds) != 0


def _poll(connected: socket.socket, wanted: int, seconds: float) -> int:
    """Return what has happened to a connection within the time; 0 for nothing."""
    poller = select.poll()
    try:
        poller.register(connected, wanted)
    except ValueError:  # another thread has closed it; using it says so
        return select.POLLNVAL
    events = poller.poll(1000 * seconds)
    return events[0][1] if events else 0


def _shut_down(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was not connected any more


def _after(chunks: list[memoryview], sent: int) -> list[memoryview]:
    """Return what is left of the chunks once ``sent`` bytes of them are gone."""
    for index, chunk in enumerate(chunks):
        if sent < len(chunk):
            return [chunk[sent:], *chunks[index + 1 :]]
        sent -= len(chunk)
    return []
