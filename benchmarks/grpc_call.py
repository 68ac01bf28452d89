"""A gRPC request over one connection, with minimal code.

The usual client library costs more than the measured servers. This one sends prepared
bytes, respects the server's windows, answers its settings and pings, and reads until the
answer's last frame. It sends one request at a time.
"""

from __future__ import annotations

import socket
import struct

from benchmarks.calls import Call

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
PADDED = 8
HEAD_BYTES = 9
INITIAL_WINDOW = 65_535
WIDEST = (1 << 31) - 1
FRAME_BYTES = 1 << 18
"""No frame is longer, even if the server accepts it: longer ones cost both sides more."""

INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
OK = 200

_PREFIX = struct.Struct(">BI")
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return (
        len(content).to_bytes(3, "big")
        + bytes((kind, flags))
        + stream.to_bytes(4, "big")
        + content
    )


def header_block(port: int, path: str) -> bytes:
    """The request's headers as HPACK literals that nobody has to remember."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": f"127.0.0.1:{port}",
    }
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    return b"".join(
        b"\0" + _literal(name) + _literal(value) for name, value in fields.items()
    )


def _literal(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()  # shorter than 127 bytes, all of them


class GrpcCall(Call):
    """A unary call that can be made again and again.

    Args:
        connected: a new connection.
        message: the request, encoded.
    """

    def __init__(
        self, connected: socket.socket, port: int, path: str, message: bytes
    ) -> None:
        super().__init__(connected, b"", lambda buffer, have: None)
        self._block = header_block(port, path)
        self._stream = -1
        self._frame_most = 16_384
        self._initial = self._window = (
            INITIAL_WINDOW  # of each stream, of the connection
        )
        self._stream_window = 0
        self._left = memoryview(b"")
        self._parts: list[bytes] = []
        self._ended = False
        self.replace_body(message)
        widest = frame(SETTINGS, 0, 0, _SETTING.pack(INITIAL_WINDOW_SIZE, WIDEST))
        connected.sendall(
            PREFACE
            + widest
            + frame(WINDOW_UPDATE, 0, 0, _NUMBER.pack(WIDEST - INITIAL_WINDOW))
        )

    def replace_body(self, body: bytes) -> None:
        """Send this message from now on."""
        self._message = _PREFIX.pack(0, len(body)) + body

    def send(self) -> None:
        """Send as much as the server's windows allow."""
        self._stream += 2
        self._parts.clear()
        self._ended = False
        self._stream_window = self._initial
        self._left = memoryview(self._message)
        self._send_data(frame(HEADERS, END_HEADERS, self._stream, self._block))

    def _send_data(self, before: bytes = b"") -> None:
        chunks = [before] if before else []
        while (
            self._left
            and (room := min(self._window, self._stream_window, self._frame_most)) > 0
        ):
            part = self._left[:room]
            self._left = self._left[room:]
            self._window -= len(part)
            self._stream_window -= len(part)
            chunks.append(
                frame(DATA, 0 if self._left else END_STREAM, self._stream, bytes(part))
            )
        if chunks:
            self.socket.sendall(b"".join(chunks))

    def receive(self) -> bool:
        """One read; whether the answer is complete.

        Raises:
            ConnectionError: the server ended the connection, or the request.
        """
        if self._have == len(self.buffer):
            self._grow()
        count = self.socket.recv_into(self._view[self._have :])
        if not count:
            raise ConnectionError("the server closed the connection")
        self._have += count
        at = 0
        while self._have - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + int.from_bytes(self._view[at : at + 3], "big")
            if end > self._have:
                break
            stream = int.from_bytes(self._view[at + 5 : at + 9], "big")
            self._take(
                self.buffer[at + 3],
                self.buffer[at + 4],
                stream,
                bytes(self._view[at + HEAD_BYTES : end]),
            )
            at = end
        self.buffer[: self._have - at] = self.buffer[at : self._have]
        self._have -= at
        return self._ended

    def _take(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == DATA:
            if flags & PADDED:
                content = content[1 : len(content) - content[0]]
            self._parts.append(content)
        elif kind == SETTINGS and not flags & ACK:
            self._settle(content)
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, content))
        elif kind == WINDOW_UPDATE:
            if stream:
                self._stream_window += (
                    _NUMBER.unpack(content)[0] if stream == self._stream else 0
                )
            else:
                self._window += _NUMBER.unpack(content)[0]
            self._send_data()
        elif kind in (RESET, GOAWAY):
            raise ConnectionError(
                f"the server ended the {'request' if kind == RESET else 'connection'}"
            )
        self._ended |= kind in (DATA, HEADERS) and bool(flags & END_STREAM)

    def _settle(self, content: bytes) -> None:
        for key, value in _SETTING.iter_unpack(content):
            if key == INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial
                self._initial = value
            elif key == MAX_FRAME_SIZE:
                self._frame_most = min(value, FRAME_BYTES)
        self.socket.sendall(frame(SETTINGS, ACK, 0))
        self._send_data()

    def status(self) -> int:
        """Return 200, or 0 without an answer."""
        whole = b"".join(self._parts)
        if (
            len(whole) >= _PREFIX.size
            and _PREFIX.unpack_from(whole)[1] == len(whole) - _PREFIX.size
        ):
            return OK
        return 0

    def answer(self) -> bytes:
        """The message of the last answer."""
        return b"".join(self._parts)[_PREFIX.size :]

    def body(self) -> bytes:
        """The same: a message has no head."""
        return self.answer()
