"""A proxy, such as Ray Serve's, that has lost its backend."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pocketserve_client import Client, FallbackServer, ServerError
from pocketserve_client.errors import GatewayError

LOST = (500, b"Internal Server Error")
ANSWER = (200, json.dumps({"predictions": [{"value": 1.5}]}).encode())
LIMIT_S = 120.0


class Proxy(http.server.ThreadingHTTPServer):
    """Gives one answer after another, repeats the last, and counts requests."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests = 0
        self._answers = answers

    def next_answer(self) -> tuple[int, bytes]:
        """Return the answer to the next request."""
        self.requests += 1
        return self._answers[min(self.requests, len(self._answers)) - 1]


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    """Sends the proxy's next answer."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_POST(self) -> None:
        """Read the body and answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = self.server.next_answer()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST

    def log_message(self, *_words: object) -> None:
        """Print nothing."""


@contextmanager
def proxy(*answers: tuple[int, bytes]) -> Iterator[Proxy]:
    """Start a proxy."""
    with Proxy(*answers) as running:
        thread = threading.Thread(target=running.serve_forever, args=[0.01])
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join(LIMIT_S)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_inference_is_retried(status: int) -> None:
    """Blocking and deferred calls are retried until the server is back."""
    with (
        proxy((status, b"Bad gateway"), LOST, ANSWER) as one,
        Client(one.url, "x", reconnect=LIMIT_S) as client,
    ):
        assert client.predict("petals", [1.0])["predictions"] == [{"value": 1.5}]
        assert one.requests == 3
    with (
        proxy(LOST, LOST, ANSWER) as one,
        Client(one.url, "x", reconnect=LIMIT_S) as client,
    ):
        call = client.async_predict("petals", [1.0])
        assert call.result()["predictions"] == [{"value": 1.5}]
        assert one.requests == 3


def test_inference_fails_at_its_deadline() -> None:
    """The error is the proxy's.

    Without time left there is no retry.
    """
    with proxy(LOST) as one, Client(one.url, "x", reconnect=0.0) as client:
        with pytest.raises(GatewayError, match="Internal Server Error") as caught:
            client.predict("petals", [1.0])
        assert caught.value.status == 500
        assert caught.value.code == ""
        assert one.requests == 1


@pytest.mark.parametrize(
    "answer",
    [
        (500, b'{"error": "e", "code": "INTERNAL"}'),
        (500, b'{"detail": "no"}'),
        (404, b"?"),
        (403, b""),
    ],
)
def test_errors_of_a_server_are_final(answer: tuple[int, bytes]) -> None:
    """Covers our error codes and those of other programs.

    Further statuses are those that proxies don't use for this.
    """
    with proxy(answer) as one, Client(one.url, "x", reconnect=LIMIT_S) as client:
        with pytest.raises(ServerError):
            client.predict("petals", [1.0])
        assert one.requests == 1


def test_steps_of_sequences_and_loads_are_not_retried() -> None:
    with proxy(LOST) as one, Client(one.url, "x", reconnect=LIMIT_S) as client:
        with pytest.raises(GatewayError):
            client.predict(
                "petals", [1.0], parameters={"sequence_id": 5, "sequence_start": True}
            )
        with pytest.raises(GatewayError):
            client.load("petals")
        assert one.requests == 2


def test_the_fallback_answers_instead_of_a_retry() -> None:
    """It answers at once, without retries on the first server."""
    with proxy(LOST) as one, proxy(ANSWER) as two:
        with Client(one.url, "x", fallback=FallbackServer(two.url, "y")) as client:
            assert client.predict("petals", [1.0]).server == two.url
            assert client.async_predict("petals", [1.0]).result().server == two.url
        assert (one.requests, two.requests) == (2, 2)
