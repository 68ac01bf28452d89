"""Another app begins exchanges while ours pairs: ours gets the token each time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from conftest import MODELS, Server, StartServer
from http_running import WAIT_S
from pocketserve_client import Client, pair
from pocketserve_wire.pairing import ClientExchange

OPENINGS = 5
AHEAD = 20


@contextmanager
def flooding(server: Server) -> Iterator[threading.Semaphore]:
    """Begin exchanges without end; counts those that were begun."""
    ends, begun = threading.Event(), threading.Semaphore(0)
    body = b'{"public": "%b"}' % ClientExchange("000000").begin().hex().encode()
    request = b"POST /pairing/begin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    def flood() -> None:
        while not ends.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
                connection.sendall(request)
                if connection.recv(4096).startswith(b"HTTP/1.1 200 "):
                    begun.release()

    flooders = [threading.Thread(target=flood) for _ in range(4)]
    for flooder in flooders:
        flooder.start()
    try:
        yield begun
    finally:
        ends.set()
        for flooder in flooders:
            flooder.join(WAIT_S)


@pytest.mark.live
def test_beginning_without_end_keeps_nobody_from_pairing(new_server: StartServer) -> None:
    server = new_server(MODELS)
    with Client(server.url, server.token) as client, flooding(server) as begun:
        for _ in range(OPENINGS):
            code = client.open_pairing()["code"]
            for _ in range(AHEAD):  # more than an opening allowed once
                assert begun.acquire(timeout=WAIT_S)
            assert pair(code, server.url) == server.token
