"""A connection of the socket protocol: many requests at a time, and no thread of its own.

Whoever waits for an answer reads the connection, and hands the others what is theirs: with one caller nothing ever
changes threads. The reader gives the reading on to another waiting caller when its own answer has come.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

from pocketserve_client import handshake
from pocketserve_client.errors import (
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

PING_AFTER_S: Final = 5.0  # of silence, before a caller asks whether the server lives; after as much again it is dead
MAX_ANSWER_BYTES: Final = 2**31 - 1
CANCEL_TIMEOUT_S: Final = (
    0.1  # how long a caller who cancels waits for others to finish writing
)
STALE_AFTER_S: Final = (
    1.0  # without use, before a connection is looked at: the server may have closed it
)


class PendingAnswer:
    """A request under way on a connection."""

    __slots__ = ("_connection", "answer", "error", "request_id")

    def __init__(self, connection: ClientConnection, request_id: int) -> None:
        self._connection = connection
        self.request_id = request_id
        self.answer: Answer | None = None
        self.error: Exception | None = None

    def is_done(self) -> bool:
        """Return whether the answer, or the failure, is there."""
        return self.answer is not None or self.error is not None

    def cancel(self) -> None:
        """Ask the server not to start on it."""
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
    """A connection whose handshake is done; see :func:`pocketserve_client.handshake.open_connection`."""

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
        seconds = timeout if connect_s is None else connect_s
        self._socket, self._decoder, self.limits = handshake.open_connection(
            address, key, seconds, max_answer
        )
        # Blocking calls that return after a while: a timeout of Python's own would cost a poll() with each read.
        self._socket.setblocking(True)
        timeval = struct.pack("@ll", *divmod(round(PING_AFTER_S * 1e6), 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._state = threading.Lock()
        self._pending: dict[int, PendingAnswer] = {}
        self._waiting: dict[threading.Event, Callable[[], bool]] = {}
        self._last_id = 0
        self._last_read = self._last_use = time.monotonic()
        self._pinged = False
        self._closed: Exception | None = None
        self._leaving = False
        self._take_all(False)  # what came together with the end of the handshake

    # Sending

    @property
    def usable(self) -> bool:
        """Return whether new requests may be started. A connection that rested is looked at first."""
        if self._closed is not None or self._leaving or self._last_id >= MAX_U32:
            return False
        if time.monotonic() - self._last_use > STALE_AFTER_S and self._reading.acquire(
            blocking=False
        ):
            deadline = (
                time.monotonic() + STALE_AFTER_S
            )  # for a peer that never ceases to talk
            try:
                while (
                    self._closed is None
                    and time.monotonic() < deadline
                    and self._poll(select.POLLIN, 0)
                ):
                    self._read_some()
            finally:
                self._stop_reading()
        return self._closed is None and not self._leaving

    def start(self, request: Request) -> PendingAnswer:
        """Send a request; BODY_TOO_LARGE is raised before anything is sent."""
        deadline = time.monotonic() + request.seconds_left(self._timeout)
        size, limit = request.body_length, self.limits.max_frame
        if size > limit:
            raise ServerError(
                413,
                "BODY_TOO_LARGE",
                f"the body has {size} bytes, the server takes {limit}",
            )
        frame = Frame(
            FrameType.REQUEST,
            # 0 would mean that there is no limit.
            arg=0
            if request.wait is None
            else min(max(1, round(1000 * request.wait)), MAX_U32),
            target=f"{request.method} {request.path}".encode("ascii"),
            json_length=request.json_length,
        )
        if request.content_type not in (JSON, OCTETS):
            frame.ext = {Extension.CONTENT_TYPE: request.content_type.encode("ascii")}
        while True:
            has_room = self._has_room() or self._read_until(self._has_room, deadline)
            if not has_room or not self._writing.acquire(
                timeout=max(0.0, deadline - time.monotonic())
            ):
                raise ServerUnreachableError(
                    f"{self._name} was not ready for this request for {self._timeout:g} s"
                )
            try:
                pending = self._register(frame)
                if pending is not None:
                    self._send([encode_head(frame, size), *request.chunks], deadline)
                    self._last_use = time.monotonic()
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
            pending = self._pending[self._last_id] = PendingAnswer(self, self._last_id)
            return pending

    def send_cancel(self, request_id: int) -> None:
        """Ask the server not to start on a request; it is answered all the same."""
        if not self._leaving:
            self._send_control(
                Frame(FrameType.CANCEL, request_id=request_id), CANCEL_TIMEOUT_S
            )

    def _send_control(self, frame: Frame, timeout: float = 0.0) -> bool:
        """Send a frame of control, unless others are writing for longer, or the server does not read."""
        if not self._writing.acquire(timeout=timeout):
            return False
        try:
            data = encode_frame(frame)
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
            self._send(rest_of([data], sent), time.monotonic() + self._timeout)
            return True
        except OSError:
            return False  # full; or broken or closed, which whoever reads will see
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
        """In a forked process, leave the connection to the other one: no lock is taken, and nothing is shut down."""
        # A thread that is not here may hold the locks.
        self._reading, self._writing, self._state = (
            threading.Lock(),
            threading.Lock(),
            threading.Lock(),
        )
        self._closed = ConnectionLostError(
            f"the connection to {self._name} belongs to the process that was forked"
        )
        for pending in self._pending.values():
            pending.error = self._closed
        self._socket.close()

    def _send(self, chunks: list[Chunk], deadline: float) -> None:
        """Write everything; reads meanwhile when the server does not take it, so that neither side waits for ever."""
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
        try:
            mask = select.POLLOUT | (select.POLLIN if reads else 0)
            events = self._poll(mask, max(0.0, deadline - time.monotonic()))
            if reads and events & ~select.POLLOUT:
                self._read_some(writing=True)
        finally:
            if reads:
                self._stop_reading()
        if not events:
            raise self._fail(
                ConnectionLostError(
                    f"{self._name} took no data for {self._timeout:g} s"
                )
            )
        if self._closed is not None:
            raise self._closed

    # Waiting and reading

    def wait(self, pending: PendingAnswer, timeout: float | None) -> None:
        """Return once the request is answered or has failed; after ``timeout`` seconds it is cancelled."""
        timeout = self._timeout if timeout is None else timeout
        if self._read_until(pending.is_done, time.monotonic() + timeout):
            return
        with self._state:
            if self._pending.pop(pending.request_id, None) is None:
                return
            pending.error = ServerUnreachableError(
                f"{self._name} did not answer within {timeout:g} s"
            )
        self._wake(finished=True)
        self.send_cancel(pending.request_id)

    def _read_until(self, finished: Callable[[], bool], deadline: float) -> bool:
        """Read, or wait while others read; returns whether it is finished before the time is over."""
        try:
            while not finished():
                if time.monotonic() >= deadline:
                    return False
                if not self._reading.acquire(blocking=False):
                    self._wait_beside(finished, deadline)
                    continue
                try:
                    while not finished() and (left := deadline - time.monotonic()) > 0:
                        if left >= PING_AFTER_S or self._poll(select.POLLIN, left):
                            self._read_some()
                finally:
                    self._stop_reading()
            return True
        finally:
            # Whoever leaves may have been chosen to read next: the choice must not end with it.
            if self._waiting and not self._reading.locked():
                self._wake(finished=False)

    def _wait_beside(self, finished: Callable[[], bool], deadline: float) -> None:
        """Wait while another thread reads, until it is finished or the reading is given on."""
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
            self._fail(
                ConnectionLostError(
                    f"{self._name} took no more requests on this connection"
                )
            )

    def _wake(self, *, finished: bool) -> None:
        """Wake all that are finished, or one of the others to take over the reading."""
        if self._waiting:
            with self._state:
                events = [
                    event
                    for event, check in self._waiting.items()
                    if check() is finished
                ]
            for event in events if finished else events[:1]:
                event.set()

    def _read_some(self, *, writing: bool = False) -> None:
        """Read once, and take all frames that this completes. The caller holds the reading."""
        try:
            count = self._socket.recv_into(self._decoder.buffer())
        except BlockingIOError:
            silent = time.monotonic() - self._last_read
            if self._pinged and silent >= 2 * PING_AFTER_S:
                self._fail(
                    ConnectionLostError(
                        f"{self._name} gave no sign of life for {silent:.0f} s"
                    )
                )
            elif not writing:
                self._pinged = self._send_control(Frame(FrameType.PING, arg=1))
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

    def _take_all(self, writing: bool) -> None:
        try:
            while (frame := self._decoder.next()) is not None:
                self._take(frame, writing)
        except ConnectionFaultError as fault:
            self._fail(
                ServerUnreachableError(
                    f"{self._name} does not keep to the protocol: {fault.message}"
                )
            )

    def _take(self, frame: Frame, writing: bool) -> None:
        if frame.type == FrameType.RESPONSE:
            with (
                self._state
            ):  # taken out and finished at once: who gives up sees either
                pending = self._pending.pop(frame.request_id, None)
                if pending is not None:  # else nobody waits for it any more
                    _finish(pending, frame)
        elif frame.type == FrameType.PING and not writing:
            self._send_control(Frame(FrameType.PONG, arg=frame.arg))
        elif (
            frame.type == FrameType.GOAWAY
        ):  # what the server will not answer can be sent again elsewhere
            self._leaving = True
            with self._state:
                for number in [
                    number for number in self._pending if number > frame.request_id
                ]:
                    closing = ConnectionLostError(
                        f"{self._name} is closing this connection"
                    )
                    self._pending.pop(number).error = closing
        elif frame.type == FrameType.ERROR:
            self._fail(handshake.named_error(frame))

    def _lost_error(self, error: OSError) -> ConnectionLostError:
        return ConnectionLostError(
            f"the connection to {self._name} broke ({error.strerror or error})"
        )

    def _fail(self, error: Exception) -> Exception:
        """Close, and end everything under way with ``error``; returns the error that closed the connection."""
        with self._state:
            if self._closed is None:
                self._closed = error
            for pending in self._pending.values():
                pending.error = self._closed
            self._pending.clear()
        with contextlib.suppress(OSError):  # it was not connected any more
            self._socket.shutdown(
                socket.SHUT_RDWR
            )  # wakes a thread that is reading; close() would leave it asleep
        self._wake(finished=True)
        if self._reading.acquire(blocking=False):
            self._socket.close()
            self._reading.release()
        return self._closed

    def _poll(self, mask: int, seconds: float) -> int:
        """Return what has happened to the connection within the time; 0 for nothing."""
        poller = select.poll()
        try:
            poller.register(self._socket, mask)
        except ValueError:  # another thread has closed it; using it says so
            return select.POLLNVAL
        events = poller.poll(1000 * seconds)
        return events[0][1] if events else 0


def _finish(pending: PendingAnswer, frame: Frame) -> None:
    unknown = [tag for tag in frame.ext if tag & CRITICAL]
    if unknown:
        text = f"the answer carries extension {unknown[0]}, which this client must understand to read it"
        pending.error = ServerError(501, "NOT_IMPLEMENTED", text)
        return
    json_length = frame.json_length if frame.json_length < len(frame.body) else None
    label = frame.ext.get(Extension.CONTENT_TYPE)
    content_type = (
        label.decode("ascii")
        if label is not None
        else JSON
        if json_length is None
        else OCTETS
    )
    pending.answer = Answer(
        frame.arg, memoryview(frame.body).toreadonly(), json_length, content_type
    )
