"""The client's HTTP transport, against arbitrary peers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pocketserve_client import Client, ServerError, ServerUnreachableError
from pocketserve_client.errors import AddressError

LARGE = bytes(64 << 20)  # more than the buffers of a connection can store
DOCUMENT = b'{"name": "n"}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(DOCUMENT), DOCUMENT)
REFUSAL = b'{"error": "too much", "code": "BODY_TOO_LARGE"}'
TOO_LARGE = b"HTTP/1.1 413 X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (
    len(REFUSAL),
    REFUSAL,
)
Talk = Callable[[socket.socket], None]


class Peer:
    """A listener that passes its connections to ``talk`` in order.

    It keeps the request heads.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0

    def __enter__(self) -> Peer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                guest, _ = self._listener.accept()
                self.connections += 1
                with guest, contextlib.suppress(OSError):
                    self._talk(guest)


def head_of(guest: socket.socket) -> bytes:
    """Read up to the end of a request's head.

    Its body may follow.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        piece = guest.recv(65536)
        if not piece:
            raise OSError("the client has gone")
        data += piece
    return data


def answer_early(guest: socket.socket) -> None:
    """Reject a body before it arrives and close unread, which resets the connection."""
    head_of(guest)
    guest.sendall(TOO_LARGE)


def test_an_answer_before_the_whole_body_is_the_answer() -> None:
    """Sending fails, but the error response is read, and nothing is sent again."""
    with (
        Peer(answer_early) as peer,
        Client(f"http://127.0.0.1:{peer.port}", "t") as client,
    ):
        for count in (1, 2):
            with pytest.raises(ServerError) as refused:
                client.predict("m", LARGE)
            assert (refused.value.status, refused.value.code) == (413, "BODY_TOO_LARGE")
            assert peer.connections == count


def test_a_peer_that_stops_reading_is_unreachable() -> None:
    """Without a response, the first error stands."""
    with Peer(lambda guest: head_of(guest) and None) as peer:
        unreachable = pytest.raises(
            ServerUnreachableError, match=r"Connection reset by peer|Broken pipe"
        )
        with Client(f"http://127.0.0.1:{peer.port}", "t") as client, unreachable:
            client.predict("m", LARGE)


@pytest.mark.parametrize("status", [101, 103, 199])
def test_bytes_before_an_answer_are_an_error(status: int) -> None:
    """Otherwise the next request would get the remaining bytes."""

    def talk(guest: socket.socket) -> None:
        head_of(guest)
        guest.sendall(b"HTTP/1.1 %d Early\r\n\r\n" % status + OK)

    with (
        Peer(talk) as peer,
        Client(f"http://127.0.0.1:{peer.port}", "t", reconnect=0.0) as client,
    ):
        for _ in range(2):
            with pytest.raises(ServerUnreachableError):
                client.server_metadata()
        assert peer.connections == 2


def keep_alive(heads: list[bytes]) -> Talk:
    def talk(guest: socket.socket) -> None:
        while True:
            heads.append(head_of(guest))
            guest.sendall(OK)

    return talk


def test_requests_share_a_connection() -> None:
    """After the server has closed it, a new one is opened."""
    heads: list[bytes] = []
    with (
        Peer(keep_alive(heads)) as peer,
        Client(f"http://127.0.0.1:{peer.port}", "t") as client,
    ):
        for _ in range(5):
            assert client.server_metadata() == {"name": "n"}
        client.close()
    assert len(heads) == 5
    assert peer.connections == 1


@pytest.fixture
def heads() -> Iterator[tuple[list[bytes], int]]:
    """Record a peer's request heads; also return its port."""
    received: list[bytes] = []
    with Peer(keep_alive(received)) as peer:
        yield received, peer.port


@pytest.mark.parametrize(
    ("url", "token", "lines"),
    [
        (
            "http://127.0.0.1:{}",
            "t",
            [b"GET /v2 HTTP/1.1", b"Host: 127.0.0.1:{}", b"Authorization: Bearer t"],
        ),
        ("http://127.0.0.1:{}/a:b@c/", "t", [b"GET /a:b@c/v2 HTTP/1.1"]),
        ("http://127.0.0.1:{}/\u00fc", "t", [b"GET /%C3%BC/v2 HTTP/1.1"]),
        (
            "http://me:p%40ss@127.0.0.1:{}",
            "t",
            [b"Host: 127.0.0.1:{}", b"Authorization: Basic bWU6cEBzcw=="],
        ),
        ("http://LOCALHOST:{}", "t", [b"Host: localhost:{}"]),
    ],
    ids=["plain", "prefix", "letters", "password", "name"],
)
def test_the_head_of_a_request(
    heads: tuple[list[bytes], int], url: str, token: str, lines: list[bytes]
) -> None:
    """It has one request line, one host and one authorization."""
    received, port = heads
    with Client(url.format(port), token) as client:
        client.server_metadata()
    found = received[0].split(b"\r\n")
    assert {line.replace(b"{}", b"%d" % port) for line in lines} <= set(found)
    assert sum(line.startswith(b"Authorization") for line in found) == 1
    assert found[-2:] == [b"", b""]


def test_a_token_cannot_add_a_header(heads: tuple[list[bytes], int]) -> None:
    received, port = heads
    for token in ("a\r\nX: y", "a\nb", "a\x00", "\u2028", "\u00e9"):
        with (
            Client(f"http://127.0.0.1:{port}", token) as client,
            pytest.raises(ServerUnreachableError),
        ):
            client.server_metadata()
    assert not received


@pytest.mark.parametrize(
    "url",
    [
        "http://a..b",
        f"http://{'a' * 64}.example",
        "http://\u00fc\u2028.example",
    ],
)
def test_invalid_server_names_are_rejected(url: str) -> None:
    with pytest.raises(AddressError):
        Client(url)
