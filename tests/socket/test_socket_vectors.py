"""Replay the golden vectors against a live server."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from conftest import MODELS, Server, StartServer
from framed import feed
from pocketserve_wire.errors import ConnectionFaultError
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import Frame, FrameType, encode_frame
from pocketserve_wire.handshake import NONCE_BYTES, ClientHandshake
from wire.wire_vectors import Vector, load

TIMEOUT_S = 120.0
MAX = 2**26
BAD = [v for v in load("invalid", "frames") if v.facts["receiver"] == "server"]
GOOD = [
    v
    for v in load("valid", "frames")
    if v.facts["receiver"] == "server" and v.facts["state"] == "ready"
]
HELLOS = [
    v for v in load("invalid", "handshake") if v.facts["refused_frame"] == "HELLO"
]

pytestmark = pytest.mark.live


class Peer:
    """A connection that sends given bytes."""

    def __init__(self, server: Server) -> None:
        self.token = server.token
        self.socket = socket.create_connection(
            ("127.0.0.1", server.ready["socket"]["port"]), TIMEOUT_S
        )
        self.decoder = FrameDecoder(ALLOWED[Role.CLIENT, HandshakeState.HELLO], MAX)
        self.received = b""

    def reach(self, awaits: str | None) -> None:
        """Continue the handshake until the server expects a frame; None completes it."""
        if awaits == "HELLO":
            return
        key = None
        if self.token:
            key = self.token.encode()
        shake = ClientHandshake(key, os.urandom(NONCE_BYTES), MAX)
        self.socket.sendall(shake.hello)
        auth = shake.answer_challenge(self.frame())
        self.decoder.allowed = ALLOWED[Role.CLIENT, HandshakeState.AUTH]
        if awaits is None:
            self.socket.sendall(auth)
            shake.accept_ready(self.frame())
            self.decoder.allowed = ALLOWED[Role.CLIENT, HandshakeState.READY]

    def frame(self) -> Frame:
        """Return the next frame."""
        while (frame := self.decoder.next()) is None:
            count = self.socket.recv_into(self.decoder.buffer())
            assert count, "the server closed the connection"
            self.decoder.received(count)
        return frame

    def last_words(self) -> tuple[list[Frame], bytes]:
        """Return all frames until the server closes, and their raw bytes."""
        frames = []
        raw = b""
        try:
            while data := self.socket.recv(65_536):
                raw += data
                frames += feed(self.decoder, data)
        except (ConnectionResetError, ConnectionFaultError):
            pass  # bytes that the server did not read, or an answer in HTTP
        return frames, raw


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    """Return a new connection to the shared server."""
    connected = Peer(server)
    yield connected
    connected.socket.close()


@pytest.mark.parametrize(
    "vector", [v for v in BAD if v.facts["max_body"] == MAX], ids=str
)
def test_faults_end_the_connection(vector: Vector, peer: Peer) -> None:
    """The server's last frame gives the right reason."""
    peer.reach(vector.facts.get("awaits"))
    peer.socket.sendall(vector.data)
    frames, raw = peer.last_words()
    if vector.facts["http"]:
        assert raw.startswith(b"HTTP/1.1 400 ")
        return
    assert frames[-1].type == FrameType.ERROR
    assert frames[-1].arg == vector.facts["reason"]
    assert json.loads(bytes(frames[-1].body))["code"] == vector.facts["code"]


@pytest.mark.parametrize("vector", HELLOS, ids=str)
def test_invalid_hellos(vector: Vector, peer: Peer) -> None:
    """The server rejects them before choosing a version."""
    peer.socket.sendall(vector.data)
    (error,), _ = peer.last_words()
    assert (error.type, error.arg) == (FrameType.ERROR, vector.facts["reason"])


@pytest.mark.parametrize(
    "vector",
    [v for v in load("invalid", "handshake") if v.facts["refused_frame"] == "AUTH"],
    ids=str,
)
def test_invalid_auths(vector: Vector, peer: Peer) -> None:
    """Proofs from other connections are invalid."""
    hello = bytes.fromhex(vector.facts["hello"])
    auth = bytes.fromhex(vector.facts["auth"])
    peer.socket.sendall(hello)
    assert peer.frame().type == FrameType.CHALLENGE
    peer.decoder.allowed = ALLOWED[Role.CLIENT, HandshakeState.AUTH]
    peer.socket.sendall(auth)
    (error,), _ = peer.last_words()
    assert (error.type, error.arg) == (FrameType.ERROR, vector.facts["reason"])


@pytest.mark.parametrize(
    "vector", [v for v in GOOD if v.facts["max_body"] == MAX], ids=str
)
def test_valid_frames_keep_the_connection(vector: Vector, peer: Peer) -> None:
    """Each REQUEST gets one RESPONSE with its id, each PING its PONG.

    A final PING is answered.
    """
    peer.reach(None)
    sent = vector.facts["frames"]
    peer.socket.sendall(vector.data)
    if any(frame["name"] == "ERROR" for frame in sent):
        assert peer.last_words()[0] == []
        return
    peer.socket.sendall(encode_frame(Frame(FrameType.PING, arg=424_242)))
    asked = sorted(frame["request_id"] for frame in sent if frame["name"] == "REQUEST")
    pings = [frame["arg"] for frame in sent if frame["name"] == "PING"]
    found = []
    for _ in range(len(asked) + len(pings) + 1):
        found.append(peer.frame())
    assert (
        sorted(frame.request_id for frame in found if frame.type == FrameType.RESPONSE)
        == asked
    )
    assert [frame.arg for frame in found if frame.type == FrameType.PONG] == [
        *pings,
        424_242,
    ]


@pytest.mark.parametrize(
    "step",
    [
        1,
        2**20,
    ],
    ids=["byte by byte", "whole"],
)
@pytest.mark.parametrize("vector", load("invalid", "request"), ids=str)
def test_errors_of_requests(
    vector: Vector, step: int, server: Server, new_server: StartServer
) -> None:
    """Each request gets the vector's answer, and a last one shows that the connection
    works.
    """
    maximum = vector.facts["max_body"]
    peer = Peer(
        server
        if maximum == MAX
        else new_server(MODELS, "--max-body-bytes", str(maximum))
    )
    peer.reach(None)
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for start in range(0, len(vector.data), step):
        peer.socket.sendall(vector.data[start : start + step])
    answers = {
        frame.request_id: frame
        for frame in (peer.frame() for _ in vector.facts["answers"])
    }
    for wanted in vector.facts["answers"]:
        frame = answers[wanted["request_id"]]
        assert frame.arg == wanted["status"], bytes(frame.body)
        if frame.arg != 200:
            assert json.loads(bytes(frame.body))["code"] == wanted["code"]
    peer.socket.close()
