"""Keep serving without a free thread or file descriptor."""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import MODELS, Server, StartServer
from http_running import WAIT_S, until
from pocketserve_client import Client

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        sys.platform != "linux",
        reason="takes threads and files from another process by prlimit",
    ),
]


@pytest.fixture
def server(new_server: StartServer) -> Iterator[Server]:
    running = new_server(MODELS)
    assert running.call("GET", "/v2/models").status_code == 200
    yield running
    assert running.stop() == 0


def allow(server: Server, what: int, maximum: int) -> None:
    """Change one of the server's resource limits."""
    hard = resource.prlimit(server.process.pid, what)[1]
    resource.prlimit(
        server.process.pid,
        what,
        (maximum if hard == resource.RLIM_INFINITY else min(maximum, hard), hard),
    )


def take_threads(server: Server) -> None:
    """Leave no address space for another thread's stack."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
    allow(server, resource.RLIMIT_AS, (pages + 256) * resource.getpagesize())


def take_files(server: Server) -> int:
    """Leave no free file descriptor; return the previous limit."""
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0]
    used = set()
    for name in os.listdir(f"/proc/{server.process.pid}/fd"):
        used.add(int(name))
    allow(
        server,
        resource.RLIMIT_NOFILE,
        next(number for number in range(len(used) + 1) if number not in used),
    )
    return before


def request(server: Server, path: str) -> bytes:
    proof = f"Authorization: Bearer {server.token}\r\n"
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{proof}\r\n".encode()


def test_requests_wait_for_a_thread_when_none_can_start(
    server: Server,
) -> None:
    with Client(server.url, server.token) as client, ExitStack() as stack:
        client.open_pairing()
        take_threads(server)
        address = ("127.0.0.1", server.port)
        connections = [
            stack.enter_context(socket.create_connection(address, WAIT_S))
            for _ in range(8)
        ]
        for connection in connections:  # each request keeps its thread busy for a while
            connection.sendall(request(server, "/pairing?wait_ms=100"))
        for connection in connections:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")


def test_a_signal_drains_the_server_when_no_thread_can_start(server: Server) -> None:
    take_threads(server)
    assert server.stop() == 0
    assert "stopping: pending requests" in server.log.read_text()


def test_the_listeners_pause_without_a_free_descriptor(server: Server) -> None:
    before = take_files(server)
    with (
        socket.create_connection(("127.0.0.1", server.port), WAIT_S) as http,
        socket.create_connection(("127.0.0.1", server.socket_port), WAIT_S),
    ):
        http.sendall(request(server, "/v2"))
        until(
            lambda: server.log.read_text().count("no connection can be accepted") >= 2
        )
        allow(server, resource.RLIMIT_NOFILE, before)
        assert http.recv(4096).startswith(b"HTTP/1.1 200 OK")
    with server.connect() as peer:
        assert peer.call("GET /v2").status == 200
    log = server.log.read_text()
    assert log.count("no connection can be accepted") == 2
    assert "Traceback" not in log
