"""A small client of the socket protocol, which can also break its rules."""

from __future__ import annotations

import json
import secrets
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any

from pocketserve_wire.errors import ConnectionFault
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import HEADER, MARK, Frame, FrameType, Header, encode_frame
from pocketserve_wire.handshake import ClientHandshake, ConnectionLimits

TIMEOUT_S = 120.0
MAX = 64 * 1024 * 1024


def encode_header(header: Header) -> bytes:
    """Return the 24 bytes of a header."""
    return HEADER.pack(MARK, header.type, 0, *header[1:])


def feed(decoder: FrameDecoder, data: bytes | memoryview) -> list[Frame]:
    """Return the frames that bytes complete, read through the decoder's buffer."""
    frames = []
    rest = memoryview(data)
    while len(rest):
        space = decoder.buffer()
        count = min(len(space), len(rest))
        space[:count] = rest[:count]
        decoder.received(count)
        rest = rest[count:]
        while (frame := decoder.next()) is not None:
            frames.append(frame)
    return frames


@dataclass
class Answer:
    """One RESPONSE."""

    request_id: int
    status: int
    ext: dict[int, bytes]
    json_length: int
    body: bytes

    @property
    def document(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """Return the stable code of an error."""
        if self.status != 200:
            return self.document.get("code")
        return None


class ClosedError(Exception):
    """The server closed the connection.

    Attributes:
        frame: its ERROR or GOAWAY, or None.
    """

    def __init__(self, frame: Frame | None) -> None:
        self.frame = frame
        self.fault = (
            ConnectionFault(frame.arg)
            if frame and frame.type == FrameType.ERROR
            else None
        )
        super().__init__(
            f"{self.fault!r}: {bytes(frame.body)!r}"
            if frame
            else "closed without a word"
        )

    @property
    def document(self) -> Any:
        """Return the last frame's document."""
        assert self.frame is not None
        return json.loads(bytes(self.frame.body))


class Framed:
    """One connection, greeted unless disabled.

    Attributes:
        socket: with a deadline on every operation.
        limits: those of READY.
        closed: once the server has ended the connection.
    """

    limits: ConnectionLimits

    def __init__(
        self,
        port: int,
        token: str | None,
        *,
        greet: bool = True,
        max_frame: int = MAX,
        receive_buffer: int = 0,
        takes_parts: bool = False,
    ) -> None:
        self.token = token
        self.takes_parts = takes_parts
        handshake = (
            ALLOWED[Role.CLIENT, HandshakeState.HELLO]
            | ALLOWED[Role.CLIENT, HandshakeState.AUTH]
        )
        self.decoder = FrameDecoder(handshake, MAX)
        self.waiting: deque[Frame] = deque()
        self.last_id = 0
        self.socket = socket.socket()
        self.socket.settimeout(TIMEOUT_S)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect(("127.0.0.1", port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if greet:
                self.greet(max_frame)
        except BaseException:
            self.close()
            raise

    def greet(self, max_frame: int = MAX) -> None:
        """Run the whole handshake."""
        key = None
        if self.token:
            key = self.token.encode()
        nonce = secrets.token_bytes(16)
        handshake = ClientHandshake(
            key, nonce, max_frame, "test", takes_parts=self.takes_parts
        )
        self.send(handshake.hello)
        self.send(handshake.answer_challenge(self.frame(FrameType.CHALLENGE)))
        self.limits = handshake.accept_ready(self.frame(FrameType.READY))
        self.decoder.allowed = ALLOWED[Role.CLIENT, HandshakeState.READY]

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.socket.sendall(data)

    def write(
        self,
        target: str,
        body: bytes = b"",
        *,
        json_length: int | None = None,
        arg: int = 0,
        request_id: int = 0,
        ext: Mapping[int, bytes] = MappingProxyType({}),
    ) -> bytes:
        """Send a REQUEST frame.

        The body is all JSON by default.
        """
        self.last_id = request_id or self.last_id + 1
        length = json_length
        if json_length is None:
            length = len(body)
        frame = Frame(
            FrameType.REQUEST,
            self.last_id,
            arg,
            target.encode(),
            dict(ext),
            length,
            body,
        )
        return encode_frame(frame)

    def ask(self, target: str, body: bytes = b"", **options: Any) -> int:
        """Send a REQUEST; return its id."""
        self.send(self.write(target, body, **options))
        return self.last_id

    def call(self, target: str, body: bytes = b"", **options: Any) -> Answer:
        """Send a REQUEST and wait for its RESPONSE."""
        wanted = self.ask(target, body, **options)
        answer = self.answer()
        assert answer.request_id == wanted
        return answer

    def cancel(self, request_id: int) -> None:
        """Send CANCEL."""
        self.send(encode_frame(Frame(FrameType.CANCEL, request_id)))

    def ping(self, number: int) -> None:
        """Send PING and wait for its PONG."""
        self.send(encode_frame(Frame(FrameType.PING, arg=number)))
        assert self.frame(FrameType.PONG).arg == number

    def next(self) -> Frame:
        """Return the next frame.

        Raises:
            ClosedError: the connection has ended; with the ERROR frame, if one was
            received.
        """
        while not self.waiting:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                raise ClosedError(None)
            self.waiting += feed(self.decoder, data)
        frame = self.waiting.popleft()
        if frame.type == FrameType.ERROR:
            raise ClosedError(frame)
        return frame

    def frame(self, kind: FrameType) -> Frame:
        """Return the next frame, which must be of a kind."""
        frame = self.next()
        assert frame.type == kind, (FrameType(frame.type), bytes(frame.body))
        return frame

    def answer(self) -> Answer:
        """Return the next RESPONSE."""
        frame = self.frame(FrameType.RESPONSE)
        return Answer(
            frame.request_id,
            frame.arg,
            dict(frame.ext),
            frame.json_length,
            bytes(frame.body),
        )

    def answers(self, count: int) -> dict[int, Answer]:
        """Return this many RESPONSEs, by id, in any order."""
        return {
            answer.request_id: answer
            for answer in (self.answer() for _ in range(count))
        }

    def ends(self) -> ClosedError:
        """Read until the server closes, and return the last frame."""
        try:
            while True:
                self.next()
        except ClosedError as closed:
            return closed

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Framed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
