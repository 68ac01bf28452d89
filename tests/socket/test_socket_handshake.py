"""The handshake: authentication, limits before it, and errors."""

from __future__ import annotations

import json
import secrets
import socket
from collections import Counter

import pytest

from framed import ClosedError, Framed
from pocketserve.transports.socket.server import MAX_HANDSHAKES
from pocketserve_wire.errors import ConnectionFault
from pocketserve_wire.frames import HEADER, Frame, FrameType, encode_frame, json_frame
from pocketserve_wire.handshake import ClientHandshake

NONCE = "c0" * 16
GOOD = {
    "v": [1, 1],
    "nonce": NONCE,
    "max_frame": 4096,
}


@pytest.fixture
def unauthenticated(server):
    with Framed(server.socket_port, server.token, greet=False) as connection:
        yield connection


def document(kind: FrameType, content: object) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return json_frame(kind, text)


def hello(**changes: object) -> bytes:
    return document(FrameType.HELLO, {**GOOD, **changes})


def refused(unauthenticated: Framed, fault: ConnectionFault) -> dict[str, object]:
    closed = unauthenticated.ends()
    assert closed.fault is fault, closed
    assert closed.document["code"] == fault.name
    assert closed.document["error"]
    return closed.document


def test_the_server_is_silent_until_hello_is_complete(unauthenticated):
    text = hello()
    unauthenticated.send(text[:-1])
    unauthenticated.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        unauthenticated.socket.recv(1)
    unauthenticated.socket.settimeout(120)
    unauthenticated.send(text[-1:])
    challenge = json.loads(bytes(unauthenticated.frame(FrameType.CHALLENGE).body))
    assert (challenge["v"], challenge["auth"]) == (1, "hmac-sha256")
    assert len(challenge["nonce"]) == 32


def test_a_handshake_byte_by_byte(server):
    with Framed(server.socket_port, server.token, greet=False) as connection:
        whole, connection.send = (
            connection.send,
            lambda data: [whole(data[i : i + 1]) for i in range(len(data))],
        )
        connection.greet()
        assert connection.call("GET /v2").status == 200


@pytest.mark.parametrize(
    "offer",
    [
        [0, 1],
        [1, 7],
        [0, 4294967295],
    ],
)
def test_a_range_with_our_version_is_accepted(unauthenticated, offer):
    unauthenticated.send(hello(v=offer, new_member={"a": 1}))
    assert json.loads(bytes(unauthenticated.frame(FrameType.CHALLENGE).body))["v"] == 1


@pytest.mark.parametrize(
    "offer",
    [
        [2, 3],
        [0, 0],
    ],
)
def test_a_range_without_our_version_is_rejected(unauthenticated, offer):
    unauthenticated.send(hello(v=offer))
    assert refused(unauthenticated, ConnectionFault.UNSUPPORTED_VERSION)["v"] == [1, 1]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff{}",
        b"{}",
        b'{"v":[1,1],"v":[1,1],"nonce":"' + NONCE.encode() + b'","max_frame":1}',
        {**GOOD, "v": 1},
        {**GOOD, "v": [1]},
        {**GOOD, "v": [1, True]},
        {**GOOD, "v": [1, 1.0]},
        {**GOOD, "v": [2, 1]},
        {**GOOD, "v": [-1, 1]},
        {**GOOD, "v": [1, 2**32]},
        {**GOOD, "nonce": NONCE.upper()},
        {**GOOD, "nonce": NONCE[:-2]},
        {**GOOD, "nonce": NONCE + "00"},
        {**GOOD, "nonce": 1},
        {**GOOD, "nonce": None},
        {**GOOD, "max_frame": 0},
        {**GOOD, "max_frame": -1},
        {**GOOD, "max_frame": 1.5},
        {**GOOD, "max_frame": "1"},
        {**GOOD, "max_frame": 2**32},
    ],
    ids=str,
)
def test_a_broken_hello(unauthenticated, broken):
    unauthenticated.send(document(FrameType.HELLO, broken))
    refused(unauthenticated, ConnectionFault.BAD_HANDSHAKE)


def wrong_answers(server) -> dict[str, object]:
    other = ClientHandshake(b"x" * 43, secrets.token_bytes(16), 4096)
    token = ClientHandshake(server.token.encode(), secrets.token_bytes(16), 4096)
    challenge = Frame(
        FrameType.CHALLENGE,
        body=json.dumps(
            {
                "v": 1,
                "nonce": "5e" * 16,
                "auth": "hmac-sha256",
            }
        ).encode(),
    )
    return {
        "another token": other.answer_challenge(challenge),
        "right token, other nonces": token.answer_challenge(challenge),
        "none": document(FrameType.AUTH, {}),
        "null": document(FrameType.AUTH, {"proof": None}),
        "empty": document(FrameType.AUTH, {"proof": ""}),
        "a number": document(FrameType.AUTH, {"proof": 7}),
        "the token": document(FrameType.AUTH, {"proof": server.token}),
        "not ascii": document(FrameType.AUTH, {"proof": "é" * 64}),
        "surrogates": document(FrameType.AUTH, b'{"proof":"\\ud800"}'),
    }


def test_all_wrong_proofs_get_the_same_error(server):
    texts = set()
    for answer in wrong_answers(server).values():
        with Framed(server.socket_port, server.token, greet=False) as unauthenticated:
            unauthenticated.send(hello())
            unauthenticated.frame(FrameType.CHALLENGE)
            unauthenticated.send(answer)
            texts.add(str(refused(unauthenticated, ConnectionFault.UNAUTHORIZED)))
    assert len(texts) == 1
    assert server.token not in texts.pop()


def test_a_proof_is_invalid_on_another_connection(server):
    with (
        Framed(server.socket_port, server.token, greet=False) as first,
        Framed(server.socket_port, server.token, greet=False) as second,
    ):
        handshake = ClientHandshake(server.token.encode(), bytes(16), 4096)
        for connection in (first, second):
            connection.send(handshake.hello)
        auth = handshake.answer_challenge(first.frame(FrameType.CHALLENGE))
        second.frame(FrameType.CHALLENGE)
        for connection in (first, second):
            connection.send(auth)
        handshake.accept_ready(first.frame(FrameType.READY))
        refused(second, ConnectionFault.UNAUTHORIZED)


def test_a_server_without_a_token_needs_no_proof(new_server, models_copy):
    server = new_server(models_copy, "--no-auth")
    with Framed(server.socket_port, None, greet=False) as connection:
        connection.send(hello())
        assert (
            json.loads(bytes(connection.frame(FrameType.CHALLENGE).body))["auth"]
            == "none"
        )
        connection.send(document(FrameType.AUTH, {}))
        assert "proof" not in json.loads(bytes(connection.frame(FrameType.READY).body))
        assert connection.socket.fileno() > 0
    with pytest.raises(Exception, match="does not require the token"):
        Framed(server.socket_port, "a" * 43)


BEFORE_READY = {
    "a request": (
        encode_frame(Frame(FrameType.REQUEST, 1, target=b"GET /v2")),
        ConnectionFault.UNEXPECTED_FRAME,
    ),
    "ping": (encode_frame(Frame(FrameType.PING)), ConnectionFault.UNEXPECTED_FRAME),
    "cancel": (
        encode_frame(Frame(FrameType.CANCEL, 1)),
        ConnectionFault.UNEXPECTED_FRAME,
    ),
    "auth": (
        HEADER.pack(b"OI", FrameType.AUTH, 0, 0, 0, 0, 0, 50, 50),
        ConnectionFault.UNEXPECTED_FRAME,
    ),
    "ready": (document(FrameType.READY, {}), ConnectionFault.UNEXPECTED_FRAME),
    "challenge": (document(FrameType.CHALLENGE, {}), ConnectionFault.UNEXPECTED_FRAME),
    "goaway": (json_frame(FrameType.GOAWAY, b"{}"), ConnectionFault.UNEXPECTED_FRAME),
    "optional": (
        HEADER.pack(b"OI", 0x80, 0, 0, 0, 0, 0, 0, 0),
        ConnectionFault.UNEXPECTED_FRAME,
    ),
    "unknown": (
        HEADER.pack(b"OI", 0x05, 0, 0, 0, 0, 0, 0, 0),
        ConnectionFault.UNKNOWN_FRAME,
    ),
    "too large": (
        HEADER.pack(b"OI", 1, 0, 0, 0, 0, 0, 4073, 4073),
        ConnectionFault.FRAME_TOO_LARGE,
    ),
    "huge": (
        HEADER.pack(b"OI", 1, 0, 0, 0, 0, 0, 2**32 - 1, 2**32 - 1),
        ConnectionFault.FRAME_TOO_LARGE,
    ),
    "extensions": (
        HEADER.pack(b"OI", 1, 0, 0, 0, 0, 3, 0, 0),
        ConnectionFault.BAD_FRAME,
    ),
    "an id": (
        HEADER.pack(b"OI", 1, 0, 1, 0, 0, 0, 0, 0),
        ConnectionFault.BAD_REQUEST_ID,
    ),
    "one wrong byte": (b"X", ConnectionFault.BAD_MARK),
    "a wrong second byte": (b"Ox", ConnectionFault.BAD_MARK),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", ConnectionFault.BAD_MARK),
    "a method in small letters": (b"get / HTTP/1.1\r\n\r\n", ConnectionFault.BAD_MARK),
    "nearly a method": (b"GETS / HTTP/1.1\r\n\r\n", ConnectionFault.BAD_MARK),
    "zeros": (bytes(5000), ConnectionFault.BAD_MARK),
}


@pytest.mark.parametrize("case", BEFORE_READY)
def test_frames_before_ready_are_rejected(unauthenticated, case):
    data, fault = BEFORE_READY[case]
    unauthenticated.send(data)
    refused(unauthenticated, fault)


def test_a_second_hello_is_rejected(unauthenticated):
    unauthenticated.send(hello() + hello())
    unauthenticated.frame(FrameType.CHALLENGE)
    refused(unauthenticated, ConnectionFault.UNEXPECTED_FRAME)


def test_an_error_before_authentication_ends_the_connection(unauthenticated):
    unauthenticated.send(
        json_frame(FrameType.ERROR, b'{"error":"no","code":"UNAUTHORIZED"}', arg=6)
    )
    assert unauthenticated.ends().frame is None


@pytest.mark.parametrize(
    "method",
    ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"],
)
def test_http_on_the_socket_port_is_explained(server, method):
    with socket.create_connection(("127.0.0.1", server.socket_port), 120) as connection:
        connection.sendall(method[:2].encode())
        connection.sendall(
            f"{method[2:]} /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        )
        received = b""
        while data := connection.recv(65536):
            received += data
    head, _, text = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"Connection: close" in head
    assert f"Content-Length: {len(text)}".encode() in head
    assert text.count(b"\n") == 1
    assert b"socket port" in text


def test_a_slow_handshake_is_ended(local):
    server = local({"handshake": 0.3})
    for said in (b"", b"OI", hello()[:-1]):
        with Framed(server.server.port, None, greet=False) as unauthenticated:
            unauthenticated.send(said)
            refused(unauthenticated, ConnectionFault.TIMEOUT)


def test_single_bytes_do_not_extend_the_handshake(local, until):
    server = local({"handshake": 0.3})
    with Framed(server.server.port, None, greet=False) as unauthenticated:
        unauthenticated.socket.settimeout(0.02)
        left = iter(hello())
        while True:
            try:
                unauthenticated.send(bytes([next(left)]))
                assert unauthenticated.socket.recv(1)
                break
            except TimeoutError:
                continue
    until(lambda: not server.server.handshakes)


def test_the_oldest_handshake_is_evicted(server):
    crowd = [
        Framed(server.socket_port, server.token, greet=False)
        for _ in range(MAX_HANDSHAKES)
    ]
    try:
        with server.connect() as connection:
            assert connection.call("GET /v2").status == 200
        refused(crowd[0], ConnectionFault.TOO_MANY_CONNECTIONS)
        crowd[-1].greet()
        assert crowd[-1].call("GET /v2").status == 200
    finally:
        for connection in crowd:
            connection.close()


def test_a_burst_of_connections_is_answered(local):
    """A program may open all its connections before sending.

    Surplus ones get an error.
    """
    server = local({"handshake": 600.0}, socket_connections=40)
    burst = [server.connect(greet=False) for _ in range(500)]
    answers = Counter()
    try:
        for connection in burst:
            try:
                connection.greet()
                answers[connection.call("GET /v2").status] += 1
            except ClosedError as closed:
                answers[closed.fault] += 1
    finally:
        for connection in burst:
            connection.close()
    assert answers == {200: 40, ConnectionFault.TOO_MANY_CONNECTIONS: 460}


def test_the_number_of_connections_is_limited(local, until):
    server = local(socket_connections=2)
    with server.connect() as first, server.connect():
        with pytest.raises(Exception, match="TOO_MANY_CONNECTIONS"):
            server.connect()
        first.close()
        until(lambda: not server.server.full)
        with server.connect() as third:
            assert third.call("GET /v2").status == 200


def test_a_taken_socket_port_is_an_error(server, tmp_path):
    from subprocess import run
    from sys import executable

    command = [
        executable,
        "-m",
        "pocketserve",
        "serve",
        "--http-port",
        "0",
        "--socket-port",
        str(server.socket_port),
    ]
    done = run(
        [*command, "--token-file", str(tmp_path / "t")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{server.socket_port}" in done.stderr
    assert "--socket-port" in done.stderr
