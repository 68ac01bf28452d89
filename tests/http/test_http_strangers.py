"""Unauthenticated clients cannot send large bodies."""

from __future__ import annotations

import json
import socket

import pytest

from conftest import Server

LARGE = 50_000_000
WAIT_S = 120.0


def send_headers(server: Server, *lines: str) -> tuple[int, dict[str, str]]:
    """Send a request's headers without its body.

    Return the status and the answer.
    """
    text = "\r\n".join(["POST /v2/models/digits/infer HTTP/1.1", *lines, "", ""])
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        connection.sendall(text.encode())
        received = b""
        while data := connection.recv(65536):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json\r\n" in head + b"\r\n"
    assert b"Continue" not in head
    return int(head.split()[1]), json.loads(body)


@pytest.mark.live
@pytest.mark.parametrize(
    "body",
    [
        f"Content-Length: {LARGE}",
        "Transfer-Encoding: chunked",
    ],
)
@pytest.mark.parametrize(
    ("lines", "status", "code"),
    [
        (["Host: 127.0.0.1"], 401, "UNAUTHORIZED"),
        (["Host: 127.0.0.1", "Authorization: Bearer wrong"], 401, "UNAUTHORIZED"),
        (["Host: 127.0.0.1", "Expect: 100-continue"], 401, "UNAUTHORIZED"),
        (["Host: evil.example"], 403, "HOST_REFUSED"),
        (["Host: 127.0.0.1", "Origin: http://evil.example"], 403, "ORIGIN_REFUSED"),
    ],
)
def test_a_large_body_is_rejected_at_once(
    server: Server, body: str, lines: list[str], status: int, code: str
) -> None:
    """The answer comes although no body was sent, and the server continues."""
    found, answer = send_headers(server, *lines, body)
    assert (found, answer["code"]) == (status, code)
    assert server.call("GET", "/v2/health/ready").status_code == 200
