"""Sequential requests over one connection, at the lowest client cost.

All sides are asked by the same code, so that a fast client library is nobody's advantage. What a call times is the
whole way: bytes sent, all bytes of the answer received. Making the body and reading the answer are not in it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import numpy as np

from pocketserve_client import handshake
from pocketserve_wire import Tensor, oip
from pocketserve_wire.frames import HEADER, HEADER_BYTES, Frame, FrameType, encode_frame

TIMEOUT_S = 60.0
RESTED_S = 1.0
MAX = 64 * 1024 * 1024
_ID = struct.Struct("<I")
OK = 200

Whole = Callable[[bytearray, int], int | None]
"""How long an answer will be, from the bytes that are there; None until that can be told."""


class Call:
    """A request that can be sent repeatedly over one connection.

    Args:
        whole: tells where the answer ends.
        framed: number the requests in their frame's header.
        port: of a server that may close the connection between requests; a new one is opened then.
        reconnects: the server does so after each answer.
    """

    def __init__(
        self,
        connected: socket.socket,
        request: bytes,
        whole: Whole,
        *,
        framed: bool = False,
        port: int = 0,
        reconnects: bool = False,
    ) -> None:
        self.socket = connected
        self.reconnects = reconnects
        self._port = port
        self._used = False
        self.request = bytearray(request)
        self.buffer = bytearray(1 << 20)
        self._view = memoryview(self.buffer)
        self._whole = whole
        self._framed = framed
        self._number = 0
        self._have = 0
        self._answered = 0.0
        self._timeouts = TIMEOUT_S

    def __call__(self) -> None:
        """Send it and receive all of the answer."""
        self.send()
        while not self.receive():
            pass

    def send(self) -> None:
        """Send it."""
        if self._framed:
            self._number += 1
            _ID.pack_into(self.request, 4, self._number)
        self._have = 0
        if self._used and (
            self.reconnects or (self._port and self._closed_by_server())
        ):
            self.socket.close()
            self.socket = connect(self._port)
            _set_timeouts(self.socket, self._timeouts)
        self._used = True
        self.socket.sendall(self.request)

    def receive(self) -> bool:
        """One read; whether the answer is complete.

        Raises:
            ConnectionError: the server closed the connection.
        """
        if self._have == len(self.buffer):
            self._grow()
        count = self.socket.recv_into(self._view[self._have :])
        if not count:
            raise ConnectionError("the server closed the connection")
        self._have += count
        length = self._whole(self.buffer, self._have)
        if length is None or self._have < length:
            return False
        self._answered = time.monotonic()
        return True

    def be_patient(self, seconds: float) -> None:
        """Set the timeout for sending and receiving."""
        self._timeouts = seconds
        _set_timeouts(self.socket, seconds)

    def answer(self) -> bytes:
        """The bytes of the last answer."""
        return bytes(self.buffer[: self._have])

    def body(self) -> bytes:
        """Return the body of an HTTP server's last answer."""
        return self.answer().split(b"\r\n\r\n", 1)[1]

    def replace_body(self, body: bytes) -> None:
        """Send this body to an HTTP server from now on."""
        head = bytes(self.request).split(b"\r\n\r\n", 1)[0]
        start, _, rest = head.partition(b"Content-Length: ")
        rest = rest.partition(b"\r\n")[2]
        self.request = bytearray(
            b"%bContent-Length: %d\r\n%b\r\n\r\n" % (start, len(body), rest) + body
        )

    def status(self) -> int:
        """Return the status of the last answer."""
        answer = self.answer()
        if self._framed:
            return int(HEADER.unpack_from(answer)[4])
        return int(answer.split(b" ", 2)[1])

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _closed_by_server(self) -> bool:
        """Return whether the server has closed an idle connection."""
        if time.monotonic() - self._answered < RESTED_S:
            return False
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _grow(self) -> None:
        self._view.release()
        self.buffer.extend(bytes(len(self.buffer)))
        self._view = memoryview(self.buffer)


def plain(port: int, request: bytes, answer_bytes: int) -> Call:
    """To a server that answers a fixed number of bytes."""
    return Call(connect(port), request, lambda buffer, have: answer_bytes)


def framed(
    port: int,
    model: str,
    values: np.ndarray,
    *,
    greet: bool,
    name: str = "x",
    **parameters: object,
) -> Call:
    """Return a call in our frames; floors have no handshake."""
    connected = greeted(port) if greet else connect(port)
    return Call(
        connected,
        request_frame(model, values, name, **parameters),
        frame_length,
        framed=True,
    )


def framed_raw(port: int, path: str, body: bytes) -> Call:
    """Return a raw call over our socket to ``/predictions``."""
    frame = encode_frame(
        Frame(FrameType.REQUEST, 1, 0, f"POST {path}".encode(), {}, 0, body)
    )
    return Call(greeted(port), frame, frame_length, framed=True)


def greeted(port: int) -> socket.socket:
    """A connection to our socket, after the handshake."""
    return _prepared(
        handshake.open_connection(("127.0.0.1", port), None, TIMEOUT_S, MAX)[0]
    )


def http(
    port: int, path: str, body: bytes, *headers: str, keep_alive: bool = True
) -> Call:
    """To an HTTP server."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return Call(
        connect(port),
        "\r\n".join([*lines, "", ""]).encode() + body,
        http_length,
        port=port,
        reconnects=not keep_alive,
    )


def http_binary(port: int, model: str, values: np.ndarray, prefix: str = "") -> Call:
    """Return an Open Inference Protocol call with binary tensors."""
    body, json_length = oip_body(values)
    headers = (
        f"Inference-Header-Content-Length: {json_length}",
        "Content-Type: application/octet-stream",
    )
    return http(port, f"{prefix}/v2/models/{model}/infer", body, *headers)


def request_frame(
    model: str, values: np.ndarray, name: str = "x", **parameters: object
) -> bytes:
    """Return a REQUEST frame, without its id."""
    body, json_length = oip_body(values, name, **parameters)
    target = f"POST /v2/models/{model}/infer".encode()
    return encode_frame(Frame(FrameType.REQUEST, 1, 0, target, {}, json_length, body))


def oip_body(
    values: np.ndarray, name: str = "x", **parameters: object
) -> tuple[bytes, int]:
    """Return a request's body and its JSON length."""
    datatype, typestr = ("UINT8", "u1") if values.dtype == np.uint8 else ("FP32", "<f4")
    data = memoryview(np.ascontiguousarray(values, typestr)).cast("B")
    request = oip.InferRequest(
        inputs=[Tensor(name, datatype, values.shape, data)],
        parameters=dict(parameters),
        binary_output=True,
    )
    encoded = oip.encode_infer_request(request)
    return b"".join(encoded.chunks), encoded.json_length


def frame_length(buffer: bytearray, have: int) -> int | None:
    """Return where the first frame ends."""
    if have < HEADER_BYTES:
        return None
    _, _, _, _, _, target, ext, _, body = HEADER.unpack_from(buffer)
    return HEADER_BYTES + target + ext + body


def http_length(buffer: bytearray, have: int) -> int | None:
    """Return where an HTTP answer ends."""
    end = buffer.find(b"\r\n\r\n", 0, have)
    if end < 0:
        return None
    head = bytes(buffer[:end]).lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        return end + 4 + int(head[at + 17 :].split(b"\r\n", 1)[0])
    if buffer.endswith(b"0\r\n\r\n", 0, have):  # chunked
        return have
    return None


def check(call: Call) -> None:
    """Make a call and check that it succeeds.

    Raises:
        RuntimeError: it is not; with the start of the answer.
    """
    call()
    if (status := call.status()) != OK:
        raise RuntimeError(
            f"status {status}: {call.answer()[-600:].decode(errors='replace')}"
        )


def connect(port: int) -> socket.socket:
    """A connection that sends at once, and gives up after :data:`TIMEOUT_S`."""
    return _prepared(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))


def _prepared(connected: socket.socket) -> socket.socket:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.settimeout(None)  # Python's own timeout would cost a poll() for each read
    _set_timeouts(connected, TIMEOUT_S)
    return connected


def _set_timeouts(connected: socket.socket, seconds: float) -> None:
    value = struct.pack("@ll", int(seconds), 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, value)
