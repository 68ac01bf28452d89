"""Run a real HTTP server with short timeouts and a small application."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pocketserve.auth.guard import Guard
from pocketserve.config import Config
from pocketserve.transports.http.connections import HttpTimeouts
from pocketserve.transports.http.server import HttpServer

TOKEN = "t" * 43
WAIT_S = 120.0
LONG = 600.0
SHORT = 0.05
ANSWER = 300_000
HUGE_ANSWER = 12_000_000  # more than the system keeps for a connection


@dataclass
class ModelHandle:
    """A server on a thread.

    Attributes:
        asked: the number of requests that reached the application.
        release: lets requests for ``/wait`` end.
    """

    server: HttpServer
    asked: list[str]
    release: threading.Event

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), WAIT_S)

    def hurry(self, timeouts: HttpTimeouts) -> None:
        """Replace the timeouts, once the slow part of a test has arrived."""
        self.server.timeouts = timeouts
        # the server checks its connections when a new one arrives
        self.connect().close()

    @property
    def channels(self) -> list:
        return list(self.server.active_channels.values())


Start = Callable[..., ModelHandle]


@contextmanager
def http_servers() -> Iterator[Start]:
    """Return a function that starts servers: ``start(timeouts, maximum=128)``.

    The servers stop at the end of the block.
    """
    with ExitStack() as ends:

        def begin(timeouts: HttpTimeouts, maximum: int = 128) -> ModelHandle:
            asked: list[str] = []
            release = threading.Event()

            def app(environ, start_response):
                asked.append(environ["PATH_INFO"])
                if environ["PATH_INFO"] == "/wait":
                    assert release.wait(WAIT_S)
                sizes = {"/large": ANSWER, "/huge": HUGE_ANSWER}
                size = sizes.get(environ["PATH_INFO"])
                body = b"hello" if size is None else bytes(size)
                start_response("200 OK", [("Content-Length", str(len(body)))])
                return [body]

            config = Config(http_port=0, max_connections=maximum, http_threads=4)
            server = HttpServer(app, config, Guard(TOKEN), timeouts)
            thread = threading.Thread(target=server.run)
            thread.start()
            ends.callback(thread.join, WAIT_S)
            ends.callback(server.stop)
            ends.callback(release.set)
            return ModelHandle(server, asked, release)

        yield begin


def ask(connection: socket.socket, path: str = "/", token: str | None = TOKEN) -> bytes:
    """Return the answer to one small request."""
    send(connection, path, token)
    return connection.recv(65536)


def send(connection: socket.socket, path: str, token: str | None = TOKEN) -> None:
    proof = ""
    if token:
        proof = f"Authorization: Bearer {token}\r\n"
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{proof}\r\n".encode()
    )


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, with a deadline."""
    deadline = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        pause.wait(0.002)


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of a connection."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True
