"""The Python client against a server that replays the golden vectors."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pocketserve_client.connection import ClientConnection, PendingAnswer
from pocketserve_client.errors import (
    ConnectionLostError,
    NotOurServerError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client.transport import Request
from pocketserve_wire.errors import GoAwayReason
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import Frame, FrameType, encode_frame, json_frame
from pocketserve_wire.handshake import ConnectionLimits, ServerHandshake
from wire.wire_vectors import Vector, load

KEY = b"key"
TIMEOUT_S = 120.0
LIMITS = ConnectionLimits(2**20, 8, 2**20, 300_000, "test/1")
# The client accepts answers of any size, and detects HTTP before READY.
BAD = [
    v
    for v in load("invalid", "frames")
    if v.facts["receiver"] == "client" and v.facts["state"] == "ready"
]
# This client accepts bodies of up to 2 GiB.
TOO_LARGE = ("too_large_response", "too_large_part")
BAD = [v for v in BAD if not v.name.startswith(TOO_LARGE)]
BEFORE = [
    v
    for v in load("invalid", "frames")
    if v.facts.get("awaits") in ("CHALLENGE", "READY")
]
ENDINGS = [
    v
    for v in load("valid", "frames")
    if v.facts["receiver"] == "client"
    and any(f["name"] == "ERROR" for f in v.facts["frames"])
]


class Scripted:
    """A listener that shakes hands like a server and then replays bytes.

    Args:
        words: bytes by the frame that they replace: CHALLENGE, READY, or the answer to the first REQUEST.
    """

    def __init__(self, **words: bytes) -> None:
        self._words = words
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        peer.settimeout(TIMEOUT_S)
        # A client may close before it has read everything, which resets the connection.
        with peer, contextlib.suppress(ConnectionError):
            decoder = FrameDecoder(ALLOWED[Role.SERVER, HandshakeState.HELLO], 2**20)
            shake = ServerHandshake(KEY, bytes(16), LIMITS)
            steps: list[tuple[str, Callable[[Frame], bytes], frozenset[FrameType]]] = [
                (
                    "challenge",
                    shake.answer_hello,
                    ALLOWED[Role.SERVER, HandshakeState.AUTH],
                ),
                (
                    "ready",
                    shake.answer_auth,
                    ALLOWED[Role.SERVER, HandshakeState.READY],
                ),
            ]
            for name, answer, following in steps:
                said = answer(self._read(peer, decoder))
                decoder.allowed = following
                peer.sendall(self._words.get(name, said))
                if name in self._words:
                    break
            else:
                self._read(peer, decoder)
                peer.sendall(self._words["answer"])
            while peer.recv(65_536):  # until the client closes
                pass

    @staticmethod
    def _read(peer: socket.socket, decoder: FrameDecoder) -> Frame:
        while (frame := decoder.next()) is None:
            count = peer.recv_into(decoder.buffer())
            assert count
            decoder.received(count)
        return frame

    def close(self) -> None:
        """Wait until the peer is gone."""
        self._thread.join(TIMEOUT_S)
        self._listener.close()


@pytest.fixture
def script() -> Iterator[Callable[..., Scripted]]:
    """Return a function that starts scripted servers."""
    started: list[Scripted] = []

    def start(**words: bytes) -> Scripted:
        started.append(Scripted(**words))
        return started[-1]

    yield start
    for one in started:
        one.close()


def ask(server: Scripted) -> tuple[ClientConnection, PendingAnswer]:
    """Connect and send one request."""
    connection = ClientConnection(server.address, KEY, TIMEOUT_S)
    return connection, connection.start(Request("GET", "/v2"))


@pytest.mark.parametrize("vector", BAD, ids=str)
def test_protocol_errors_of_the_server_end_the_call(
    vector: Vector, script: Callable[..., Scripted]
) -> None:
    """The client closes and reports a protocol error, unless its answer came first."""
    connection, pending = ask(script(answer=vector.data))
    with pytest.raises(ServerUnreachableError, match="protocol"):
        pending.result()
    assert not connection.usable


@pytest.mark.parametrize("vector", BEFORE, ids=str)
def test_protocol_errors_before_ready(
    vector: Vector, script: Callable[..., Scripted]
) -> None:
    """The client sends no request to such a server."""
    server = script(**{vector.facts["awaits"].lower(): vector.data})
    with pytest.raises(ServerUnreachableError):
        ClientConnection(server.address, KEY, TIMEOUT_S)


@pytest.mark.parametrize("vector", ENDINGS, ids=str)
def test_errors_of_the_connection(
    vector: Vector, script: Callable[..., Scripted]
) -> None:
    """For any body of an ERROR, an error of the package is raised."""
    if vector.facts["state"] == "handshake":
        server = script(**{vector.facts["awaits"].lower(): vector.data})
        with pytest.raises((ServerUnreachableError, ServerError)):
            ClientConnection(server.address, KEY, TIMEOUT_S)
        return
    connection, pending = ask(script(answer=vector.data))
    if vector.facts["frames"][0]["name"] == "RESPONSE":
        assert pending.result().status == 200
    else:
        with pytest.raises((ServerUnreachableError, ServerError)):
            pending.result()
    connection.close()


def test_an_unproven_server_gets_no_request(script: Callable[..., Scripted]) -> None:
    """Nothing is sent after AUTH.

    The server may send no proof, a reflected one or another's.
    """
    limits = b'"max_frame":1,"max_inflight":1,"max_bytes_inflight":1,"idle_ms":1'
    for proof in (b"", b'"proof":"' + b"0" * 64 + b'",'):
        server = script(ready=json_frame(FrameType.READY, b"{" + proof + limits + b"}"))
        with pytest.raises(NotOurServerError):
            ClientConnection(server.address, KEY, TIMEOUT_S)


def test_an_unknown_critical_extension_fails_its_request(
    script: Callable[..., Scripted],
) -> None:
    """An unknown critical extension fails only its own request."""
    (vector,) = [
        v for v in load("valid", "frames") if v.name == "response_unknown_critical"
    ]
    connection, first = ask(script(answer=vector.data))
    second = connection.start(Request("GET", "/v2"))
    with pytest.raises(ServerError) as caught:
        first.result()
    assert (caught.value.status, caught.value.code) == (501, "NOT_IMPLEMENTED")
    assert second.result().status == 200
    connection.close()


def test_goaway_answers_only_accepted_requests(script: Callable[..., Scripted]) -> None:
    """Accepted requests are answered.

    The others fail as safe to retry.
    """
    away = json_frame(
        FrameType.GOAWAY, b"{}", request_id=1, arg=GoAwayReason.SHUTTING_DOWN
    )
    answer = encode_frame(Frame(FrameType.RESPONSE, 1, 200, json_length=2, body=b"{}"))
    connection, first = ask(script(answer=away + answer))
    second = connection.start(Request("GET", "/v2"))
    assert first.result().status == 200
    with pytest.raises(ConnectionLostError):
        second.result()
    assert not connection.usable
    connection.close()
