"""Request and response bodies arrive whole, in any pieces and at any speed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.auth.guard import Guard
from pocketserve.config import Config
from pocketserve.transports.http.body import (
    MAX_JOINED,
    InPlaceData,
    MemoryBuffer,
    ReceivedBody,
)
from pocketserve.transports.http.server import HttpServer
from pocketserve_wire.limits import FIRST_BODY_BYTES, TENSOR_ALIGNMENT

TOKEN = "t" * 43
WAIT_S = 120.0


def noise(length: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(length)


def write_to(body: ReceivedBody, data: bytes, placed: bool) -> int:
    """Write bytes to a body, as waitress or our channel would."""
    if not placed:
        return body.received(data)
    with body.room() as room:
        part = data[: len(room)]
        room[: len(part)] = part
    return body.received(InPlaceData(len(part)))


@settings(max_examples=50, deadline=None)
@given(
    length=st.one_of(
        st.integers(1, 300),
        st.sampled_from([FIRST_BODY_BYTES - 3, FIRST_BODY_BYTES, 2_500_001]),
    ),
    json_length=st.integers(0, 40),
    pieces=st.lists(
        st.tuples(st.integers(1, 900_000), st.booleans()), min_size=1, max_size=8
    ),
)
def test_a_body_is_joined_from_any_pieces(length, json_length, pieces):
    data = noise(length)
    behind = b"GET / HTTP/1.1"
    body = ReceivedBody(length, json_length)
    given_bytes = data + behind
    at = 0
    turn = 0
    while not body.completed:
        size, placed = pieces[turn % len(pieces)]
        turn += 1
        taken = write_to(body, given_bytes[at : at + size], placed)
        assert taken > 0
        at += taken
        assert len(body) == min(at, length)
    assert given_bytes[at:] == behind
    memory = body.getfile().getbuffer()
    assert bytes(memory) == data
    tensors = np.frombuffer(memory, np.uint8)[json_length:]
    assert json_length >= length or tensors.ctypes.data % TENSOR_ALIGNMENT == 0


def test_memory_is_allocated_as_bytes_arrive():
    body = ReceivedBody(60_000_000)
    write_to(body, noise(1000), placed=True)
    with body.room() as room:
        assert len(room) == FIRST_BODY_BYTES - 1000


def test_a_part_is_sent_without_a_copy():
    data = bytearray(noise(100))
    part = MemoryBuffer(memoryview(data))
    assert part.get(10).obj is data
    part.skip(10)
    assert bytes(part.get(5)) == bytes(data[10:15])
    assert (len(part), bytes(part.get(100))) == (90, bytes(data[10:]))
    part.close()
    assert len(part) == 0


def echo(environ, start_response):
    """Return the body in parts whose lengths the query string lists."""
    body = environ["wsgi.input"].getbuffer()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    parts = []
    for text in filter(None, environ["QUERY_STRING"].split(",")):
        parts.append(body[: int(text)])
        body = body[int(text) :]
    return [*parts, body]


@pytest.fixture
def port() -> Iterator[int]:
    server = HttpServer(
        echo, Config(http_port=0, max_body_bytes=20_000_000), Guard(TOKEN)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server.port
    server.stop()
    thread.join(WAIT_S)


def request(body: bytes, query: str = "", *headers: str) -> bytes:
    lines = [
        f"POST /?{query} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {TOKEN}",
        *headers,
    ]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@contextmanager
def sending(port: int, data: bytes) -> Iterator[socket.socket]:
    """Connect with a small receive buffer, and send in another thread."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(WAIT_S)
        connection.connect(("127.0.0.1", port))
        thread = threading.Thread(target=connection.sendall, args=(data,))
        thread.start()
        yield connection
        thread.join(WAIT_S)


def answered(connection: socket.socket, kept: bytearray) -> bytes:
    """Return the next response's body; ``kept`` receives the bytes after it."""
    while (end := kept.find(b"\r\n\r\n")) < 0:
        kept += _some(connection)
    head = bytes(kept[:end]).lower()
    assert head.startswith(b"http/1.1 200 ok")
    (size,) = (
        int(line[15:])
        for line in head.split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    while len(kept) < end + 4 + size:
        kept += _some(connection)
    body = bytes(kept[end + 4 : end + 4 + size])
    del kept[: end + 4 + size]
    return body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(100_000)
    assert data, "closed in the middle of an answer"
    return data


@pytest.mark.parametrize(
    "length", [1, 8_000, 8_192, 65_537, FIRST_BODY_BYTES, 3_000_001, 12_345_678]
)
def test_large_bodies_in_both_directions(port, length):
    bodies = [noise(length, seed) for seed in range(3)]
    with sending(port, b"".join(map(request, bodies))) as connection:
        kept = bytearray()
        assert [answered(connection, kept) for _ in bodies] == bodies
        assert not kept


@pytest.mark.parametrize(
    "query",
    [
        "10",
        "0,10",
        f"{MAX_JOINED}",
        f"{MAX_JOINED + 1}",
        "1,200000,1",
        "300000",
    ],
)
def test_answers_in_parts_arrive_whole(port, query):
    body = noise(300_000)
    with sending(port, request(body, query) + request(b"end")) as connection:
        kept = bytearray()
        assert answered(connection, kept) == body
        assert answered(connection, kept) == b"end"


def test_a_large_body_is_sent_after_100_continue(port):
    body = noise(200_000)
    head, _ = request(body, "", "Expect: 100-continue").split(b"\r\n\r\n", 1)
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert answered(connection, bytearray()) == body


def test_a_client_that_closes_within_a_body_disturbs_no_other(port):
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as connection:
        connection.sendall(request(noise(2_000_000))[:1_500_000])
    with sending(port, request(b"next")) as connection:
        assert answered(connection, bytearray()) == b"next"
