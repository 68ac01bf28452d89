"""Pair an app while other apps begin exchanges and guess codes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from conftest import MODELS, Server, StartServer
from http_running import WAIT_S
from pocketserve_client import Client, pair
from pocketserve_wire.pairing import ClientExchange

OPENINGS = 10
AHEAD = 20
"""More exchanges and guesses than a pairing once allowed."""


def post(server: Server, step: str, **values: str) -> dict[str, str]:
    """Send an unauthenticated request.

    A non-JSON answer becomes an empty dict.
    """
    body = json.dumps(values).encode()
    head = (
        b"POST /pairing/%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
        % (step.encode(), len(body))
    )
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection,
    ):
        connection.sendall(head + body)
        with connection.makefile("rb") as answer:
            return json.loads(answer.read().partition(b"\r\n\r\n")[2] or b"{}")
    return {}


@contextmanager
def flooding(server: Server, guesses: bool) -> Iterator[threading.Semaphore]:
    """Begin exchanges and guess codes continuously; count the guesses that the server
    checked.
    """
    ends = threading.Event()
    counted = threading.Semaphore(0)
    public = ClientExchange("0000000000").begin().hex()

    def flood() -> None:
        while not ends.is_set():
            answer = post(server, "begin", public=public)
            if guesses and "exchange" in answer:
                answer = post(
                    server, "finish", exchange=answer["exchange"], proof="00" * 32
                )
            if "exchange" in answer or answer.get("code") == "PAIRING_REFUSED":
                counted.release()

    flooders = [threading.Thread(target=flood) for _ in range(4)]
    for flooder in flooders:
        flooder.start()
    try:
        yield counted
    finally:
        ends.set()
        for flooder in flooders:
            flooder.join(WAIT_S)


@pytest.mark.live
@pytest.mark.parametrize("guesses", [False, True])
def test_a_flood_of_guesses_does_not_prevent_a_pairing(
    new_server: StartServer, guesses: bool
) -> None:
    server = new_server(MODELS)
    with (
        Client(server.url, server.token) as client,
        flooding(server, guesses) as counted,
    ):
        for _ in range(OPENINGS):
            code = client.open_pairing()["code"]
            for _ in range(AHEAD):
                assert counted.acquire(timeout=WAIT_S)
            assert pair(code, server.url) == server.token
