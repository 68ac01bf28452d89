"""Count answers and connections of both transports in ``/metrics``, with a limit."""

from __future__ import annotations

import socket
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import MODELS, Server, StartServer
from http_running import WAIT_S, until

pytestmark = pytest.mark.live

INFER = "/v2/models/petals/infer"
PATTERN = "/v2/models/{model}/infer"
Answers = Counter[tuple[str, str, str, str]]


def read(server: Server, path: str = "/metrics") -> tuple[Answers, dict[str, float]]:
    """Return answers by transport, method, route and status; connections by transport."""
    answer = server.call("GET", path)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    answers = Counter()
    opened = {}
    for family in text_string_to_metric_families(answer.text):
        for one in family.samples:
            if one.name == "pocketserve_responses_total":
                key = tuple(
                    one.labels[name]
                    for name in ("transport", "method", "route", "status")
                )
                answers[key] = int(one.value)
            elif one.name == "pocketserve_open_connections":
                opened[one.labels["transport"]] = one.value
    return answers, opened


def say(server: Server, request: bytes) -> bytes:
    """Send a request over an unauthenticated connection and read to its end."""
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as stranger:
        stranger.sendall(request)
        received = b""
        while data := stranger.recv(65536):
            received += data
    return received.split(b" ", 2)[1]


def test_answers_are_counted_by_route_and_status(new_server: StartServer) -> None:
    server = new_server(MODELS)
    for path, body, status in [
        (INFER, b"{", 400),
        ("/v2/models/nobody/infer", b"{}", 404),
        ("/v2/models/nobody-else/infer", b"{}", 404),
        ("/predictions/petals", b"[1, 2, 3]", 200),
        ("/v1/models/petals:predict", b"{", 400),
        ("/nothing/here", b"", 404),
        ("/v2/models", b"", 405),
    ]:
        assert server.call("POST", path, data=body).status_code == status
    assert server.call("HEAD", "/v2/health/live").status_code == 200
    assert (
        server.call(
            "POST", INFER, headers={"Content-Encoding": "br"}, data=b"{"
        ).status_code
        == 415
    )
    with server.connect() as framed:
        assert framed.call(f"POST {INFER}", b"{").status == 400
        assert framed.call("GET /nothing/here").status == 404
        assert framed.call("no target").status == 400
        assert framed.call("GET /v2").status == 200
        counted, opened = read(server, "/monitoring/prometheus/metrics")
    assert counted == {
        ("http", "POST", PATTERN, "400"): 1,
        ("http", "POST", PATTERN, "404"): 2,
        ("http", "POST", PATTERN, "415"): 1,
        ("http", "POST", "/predictions/{model}", "200"): 1,
        ("http", "POST", "/v1/models/{model}:predict", "400"): 1,
        ("http", "GET", "/v2/health/live", "200"): 1,
        ("http", "", "", "404"): 1,
        ("http", "", "", "405"): 1,
        ("socket", "POST", PATTERN, "400"): 1,
        ("socket", "GET", "/v2", "200"): 1,
        ("socket", "", "", "404"): 1,
        ("socket", "", "", "400"): 1,
    }
    assert opened == {"http": 1, "socket": 1}
    until(lambda: read(server)[1]["socket"] == 0)


def test_unauthenticated_requests_add_no_series(
    new_server: StartServer,
) -> None:
    """Their paths, methods and hosts may be anything."""
    server = new_server(MODELS)
    host = b"Host: 127.0.0.1\r\n\r\n"
    for number in range(30):
        assert say(server, b"GET /v2/models/m%d HTTP/1.1\r\n" % number + host) == b"401"
        assert (
            say(server, b"M%d /predictions/m%d HTTP/1.1\r\n" % (number, number) + host)
            == b"401"
        )
        assert (
            say(server, b"POST /v2/models/petals/infer HTTP/1.1\r\n" + host) == b"401"
        )
        assert (
            say(server, b"GET / HTTP/1.1\r\nHost: h%d.example\r\n\r\n" % number)
            == b"403"
        )
        assert (
            say(server, b"GET /%d HTTP/2.%d\r\n" % (number, number % 10) + host)
            == b"505"
        )
        assert (
            say(
                server, b"POST /%d HTTP/1.1\r\nContent-Length: 5000\r\n" % number + host
            )
            == b"401"
        )
        assert (
            say(server, b"GET /v2/health/live?a=%d HTTP/1.1\r\n" % number + host)
            == b"200"
        )
    assert read(server)[0] == {
        ("http", "", "", "401"): 120,
        ("http", "", "", "403"): 30,
        ("http", "", "", "505"): 30,
        ("http", "GET", "/v2/health/live", "200"): 30,
    }
