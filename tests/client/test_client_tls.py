"""A client over HTTPS trusts the certificates of the system, or of SSL_CERT_FILE."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pocketserve_client import Client
from pocketserve_client.errors import ServerUnreachableError

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""A key and its own signature, for ``localhost``, made for these tests."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"live": true}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: a client that does not trust the server leaves."""


@pytest.fixture
def url() -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), _Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"https://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(120)


def test_an_unknown_certificate_says_how_to_trust_it(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where Python finds no authorities at all."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with Client(url) as client, pytest.raises(ServerUnreachableError) as raised:
        client.is_ready()
    message = str(raised.value)
    assert f"{url} cannot be trusted (self" in message
    assert "Python found no certificates of authorities on this system" in message
    assert "SSL_CERT_FILE" in message


def test_a_named_certificate_is_trusted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with Client(url) as client:
        assert client.is_ready()
