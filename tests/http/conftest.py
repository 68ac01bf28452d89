"""Raw HTTP for requests that client libraries cannot send, and a check of errors."""

from __future__ import annotations

import io
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import parse_headers
from typing import Any

import pytest

from conftest import ROOT, Server, start_server

TIMEOUT_S = 120.0
SMALL_MODELS = ROOT / "tests" / "runtimes" / "data"
KIT = (
    "dynamic_batch",
    "int8_io",
    "two_signatures",
    "strings",
    "two_inputs",
    "several_outputs",
    "custom_op",
)


@dataclass
class RawAnswer:
    """A response as received; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Wire:
    """Exchange bytes with a server.

    Attributes:
        port: the server's port.
        token: the server's token.
    """

    port: int
    token: str | None

    def connect(self) -> socket.socket:
        """Connect, with a deadline on every operation."""
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)

    def write(
        self, method: str, target: str, *headers: str, body: bytes | None = None
    ) -> bytes:
        """Return a valid request with the token."""
        lines = [
            f"{method} {target} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self.token}",
            *headers,
        ]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")

    def exchange(self, request: bytes, *, head: bool = False) -> list[RawAnswer]:
        """Send bytes, shut down writing, and read all responses until the server
        closes.
        """
        received = b""
        with self.connect() as connection:
            # A server that answers early resets the connection after its answer.
            with suppress(OSError):
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                while chunk := connection.recv(65536):
                    received += chunk
        stream = io.BytesIO(received)
        answers = []
        while (answer := read_answer(stream, head=head)) is not None:
            answers.append(answer)
        return answers

    def one(self, request: bytes, *, head: bool = False) -> RawAnswer:
        """Return the only response to a request."""
        (answer,) = self.exchange(request, head=head)
        return answer


def read_answer(stream: Any, *, head: bool = False) -> RawAnswer | None:
    """Return the next final response of a stream; None at its end."""
    while line := stream.readline():
        status = int(line.split()[1])
        headers = {name.lower(): value for name, value in parse_headers(stream).items()}
        if status >= 200:
            return RawAnswer(
                status,
                headers,
                b"" if head else stream.read(int(headers["content-length"])),
            )
    return None


@pytest.fixture
def wire_to() -> Callable[[Any], Wire]:
    """Return raw access to a server started by the test."""
    return lambda server: Wire(server.port, server.token)


@pytest.fixture
def wire(server: Any) -> Wire:
    """Return raw access to the shared server."""
    return Wire(server.port, server.token)


@pytest.fixture
def read_from() -> Callable[..., RawAnswer | None]:
    """Return a function that reads one response from a connection's file."""
    return read_answer


@pytest.fixture
def refused() -> Callable[..., str]:
    """Return a check of an error: ``refused(answer, 400, "CODE")`` returns its text."""

    def check(answer: Any, status: int, code: str) -> str:
        raw = isinstance(answer, RawAnswer)
        headers = (
            answer.headers
            if raw
            else {name.lower(): value for name, value in answer.headers.items()}
        )
        body = answer.body if raw else answer.content
        found = answer.status if raw else answer.status_code
        assert (found, json.loads(body).get("code")) == (status, code), body
        assert headers["content-type"] == "application/json"
        assert not [name for name in headers if name.startswith("access-control-")]
        document = json.loads(body)
        assert set(document) == {"error", "code"}
        assert isinstance(document["error"], str)
        assert document["error"]
        assert "Traceback" not in document["error"]
        return document["error"]

    return check


@pytest.fixture(scope="session")
def kit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on tiny models of every kind, without manifests.

    ``custom_op`` cannot be loaded.
    """
    folder = tmp_path_factory.mktemp("kit")
    for name in KIT:
        shutil.copy(SMALL_MODELS / f"{name}.tflite", folder)
    running = start_server(tmp_path_factory.mktemp("kit-server"), folder)
    yield running
    assert running.stop() == 0
