"""Bound the connections, memory and time of unauthenticated HTTP clients."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from conftest import MODELS, Server, StartServer
from http_running import (
    LONG,
    TOKEN,
    WAIT_S,
    ModelHandle,
    Start,
    ask,
    http_servers,
    is_closed,
    send,
    until,
)
from pocketserve.transports.http.connections import HttpTimeouts
from pocketserve.transports.http.server import MAX_UNAUTHENTICATED

PATIENT = HttpTimeouts(LONG, LONG, LONG, LONG, LONG)
IMPATIENT = PATIENT._replace(newcomer=0.0)
BURST = 500
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BOMB = gzip.compress(bytes(60_000_000))


@pytest.fixture
def start() -> Iterator[Start]:
    with http_servers() as begin:
        yield begin


def read_to_end(connection: socket.socket) -> bytes:
    """Return all bytes until the connection ends."""
    received = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65536):
            received += data
    return received


def push(connection: socket.socket, data: bytes) -> None:
    """Send as much as the system accepts at once."""
    connection.setblocking(False)
    with suppress(OSError):
        connection.send(data)


def flood(running: ModelHandle, stack: ExitStack, count: int, data: bytes) -> None:
    for _ in range(count):
        push(stack.enter_context(running.connect()), data)


def test_an_unauthenticated_connection_gets_one_request(start: Start) -> None:
    running = start(PATIENT)
    with running.connect() as stranger:
        stranger.sendall(HEALTH * 400)
        answer = read_to_end(stranger)
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close\r\n" in answer
    assert running.asked == ["/v2/health/live"]


def test_each_pipelined_request_of_a_burst_is_counted(start: Start) -> None:
    running = start(PATIENT)
    with ExitStack() as stack:
        flood(running, stack, 140, HEALTH * 4000)
        with running.connect() as honest:
            assert ask(honest, "/honest").endswith(b"hello")
            assert ask(honest, "/honest").endswith(b"hello")
        assert running.asked.count("/v2/health/live") <= 140


def test_answered_unauthenticated_connections_give_way(start: Start) -> None:
    """Unauthenticated requests hold all connections and threads when a client with the
    token connects.
    """
    running = start(PATIENT, maximum=4)
    with ExitStack() as stack:
        for _ in range(4):
            send(stack.enter_context(running.connect()), "/wait", token=None)
        until(lambda: len(running.asked) == 4)
        honest = stack.enter_context(running.connect())
        send(honest, "/")
        until(lambda: any(channel.authenticated for channel in running.channels))
        assert len(running.channels) <= 4
        running.release.set()
        assert honest.recv(65536).endswith(b"hello")


def test_unauthenticated_clients_have_a_share_of_the_connections(start: Start) -> None:
    running = start(IMPATIENT, maximum=MAX_UNAUTHENTICATED + 8)
    with ExitStack() as stack:
        friend = stack.enter_context(running.connect())
        assert ask(friend).endswith(b"hello")
        for _ in range(MAX_UNAUTHENTICATED + 40):
            stack.enter_context(running.connect())
        with running.connect() as honest:
            assert ask(honest).endswith(b"hello")
            assert (
                sum(not channel.authenticated for channel in running.channels)
                <= MAX_UNAUTHENTICATED
            )
        assert ask(friend).endswith(b"hello")


@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_burst_of_connections_is_answered(start: Start, token: str | None) -> None:
    """Node's HTTP client opens a connection per request before it sends any."""
    running = start(PATIENT, maximum=512)
    with ExitStack() as stack:
        connections = [stack.enter_context(running.connect()) for _ in range(BURST)]
        for connection in connections:
            send(connection, "/", token)
        for connection in connections:
            assert connection.recv(65536).endswith(b"hello")
    assert len(running.asked) == BURST


def test_the_grace_period_of_new_connections_ends(start: Start) -> None:
    """Silent connections beyond their share are closed when the period is over."""
    running = start(PATIENT, maximum=512)
    with ExitStack() as stack:
        for _ in range(MAX_UNAUTHENTICATED + 40):
            stack.enter_context(running.connect())
        until(lambda: len(running.channels) == MAX_UNAUTHENTICATED + 40)
        running.hurry(IMPATIENT)
        until(lambda: len(running.channels) <= MAX_UNAUTHENTICATED)


def test_partial_requests_get_no_grace_period(start: Start) -> None:
    """Their bytes take memory."""
    running = start(PATIENT, maximum=512)
    with ExitStack() as stack:
        for _ in range(MAX_UNAUTHENTICATED + 40):
            push(stack.enter_context(running.connect()), b"GET / HTTP/1.1\r\nX: ")
        with running.connect() as honest:
            assert ask(honest).endswith(b"hello")
        partial = [
            channel for channel in running.channels if channel.request is not None
        ]
        assert len(partial) <= MAX_UNAUTHENTICATED + 1


def test_empty_lines_are_not_requests(start: Start) -> None:
    running = start(PATIENT)
    with running.connect() as stranger:
        push(stranger, b"\r\n\r\n" * 100_000)
        stranger.settimeout(WAIT_S)
        assert read_to_end(stranger).startswith(b"HTTP/1.0 400 ")
    assert running.asked == []


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v2/health/live", b"415", b"UNSUPPORTED_ENCODING"),
        ("/", b"415", b"UNSUPPORTED_ENCODING"),
        ("/pairing/begin", b"415", b"UNSUPPORTED_ENCODING"),
        ("/pairing/finish", b"415", b"UNSUPPORTED_ENCODING"),
        ("/v2", b"401", b"UNAUTHORIZED"),
        ("/predictions/petals", b"401", b"UNAUTHORIZED"),
    ],
)
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
@pytest.mark.live
def test_an_unauthenticated_body_is_not_inflated(
    server: Server, path: str, status: bytes, code: bytes, coding: str
):
    method = "GET"
    if path.startswith("/p"):
        method = "POST"
    body = gzip.compress(bytes(2_000_000))
    assert len(body) < 4096
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as stranger:
        stranger.sendall(head.encode() + b"\r\n\r\n" + body)
        answer = read_to_end(stranger)
    assert answer.split(b" ", 2)[1] == status
    assert code in answer


@pytest.mark.live
def test_a_request_without_a_body_may_name_a_coding(server: Server) -> None:
    """tritonclient leaves the header in the dict that its user passed."""
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as stranger:
        stranger.sendall(HEALTH[:-2] + b"Content-Encoding: gzip\r\n\r\n")
        assert read_to_end(stranger).startswith(b"HTTP/1.1 200 OK")


def resident(pid: int, name: str) -> int:
    """Return a figure of a process's memory in bytes, from /proc."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@pytest.mark.live
@pytest.mark.alone
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from /proc"
)
@pytest.mark.parametrize("attack", ["gzip", "pipelined", "idle", "slow"])
def test_an_unauthenticated_flood_takes_little_memory(
    new_server: StartServer, attack: str
) -> None:
    server = new_server(MODELS)
    assert server.call("GET", "/v2/models").status_code == 200
    before = resident(server.process.pid, "VmHWM:")
    length = f"Content-Length: {len(BOMB)}\r\n\r\n".encode()
    data = {
        "gzip": b"POST /pairing/begin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: gzip\r\n"
        + length
        + BOMB,
        "pipelined": HEALTH * 4000,
        "idle": b"",
        "slow": b"GET / HTTP/1.1\r\nX: " + b"x" * 30_000,
    }[attack]
    with ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), WAIT_S)
            )
            push(connection, data)
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as honest:
                send(honest, "/v2/models", server.token)
                assert honest.recv(4096).startswith(b"HTTP/1.1 200 OK")
    assert resident(server.process.pid, "VmHWM:") - before <= 20_000_000


def test_a_refused_client_can_send_its_whole_body_and_read_the_answer(
    start: Start,
) -> None:
    """The body exceeds all buffers, and is sent completely before the answer is read."""
    running = start(PATIENT)
    body = bytes(1 << 20)
    with running.connect() as stranger:
        stranger.sendall(
            b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
            % (64 * len(body))
        )
        for _ in range(64):
            stranger.sendall(body)
        assert read_to_end(stranger).startswith(b"HTTP/1.1 401 ")
    assert running.asked == []
    until(lambda: running.channels == [])


def test_drained_connections_are_few_and_end(start: Start) -> None:
    running = start(PATIENT)
    with ExitStack() as stack:
        refused = [stack.enter_context(running.connect()) for _ in range(40)]
        for connection in refused:
            connection.sendall(
                b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n\r\n"
            )
            assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")
        until(lambda: len(running.channels) <= 16)
        running.hurry(HttpTimeouts(LONG, LONG, LONG, 0.05))
        assert all(is_closed(connection) for connection in refused)
        until(lambda: running.channels == [])
