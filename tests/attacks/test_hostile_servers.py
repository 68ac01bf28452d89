"""End every call to a hostile server in time.

The error is the client's own. The servers here respect each timeout of a single read,
and would go on forever.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import random
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator

import pytest

from pocketserve.cli import main
from pocketserve_client import Client, ServerUnreachableError
from pocketserve_client import connection as socket_connection
from pocketserve_client.errors import PocketserveError
from pocketserve_wire.frames import Frame, FrameType, encode_frame, json_frame
from pocketserve_wire.strict_json import dumps

TIMEOUT_S = 120.0
SHORT_S = 0.3
"""Seconds before the tested clients give up."""

MAX = 100_000
"""Size limit of an answer, in bytes."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PACKED_BYTES = 50_000_000
Parts = Callable[[], Iterable[bytes]]


class Peer:
    """Sends each client the given parts for as long as it stays connected.

    Args:
        parts: sent after the client's first bytes.
        pace: seconds between the parts.
    """

    def __init__(self, parts: Parts, pace: float = 0.0) -> None:
        self._parts = parts
        self._pace = pace
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]

    def __enter__(self) -> Peer:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # shut down
            while True:
                guest, _ = self._listener.accept()
                guest.settimeout(TIMEOUT_S)
                self._threads.append(threading.Thread(target=self._talk, args=[guest]))
                self._threads[-1].start()

    def _talk(self, guest: socket.socket) -> None:
        with guest, contextlib.suppress(OSError):
            guest.recv(65536)
            for part in self._parts():
                guest.sendall(part)
                if self._over.wait(self._pace) if self._pace else self._over.is_set():
                    return


def http_client(peer: Peer, timeout: float = TIMEOUT_S) -> Client:
    return Client(
        f"http://127.0.0.1:{peer.port}",
        "x",
        timeout=timeout,
        reconnect=0.0,
        max_answer_bytes=MAX,
    )


# --- HTTP


def _bytes_of(data: bytes) -> Iterator[bytes]:
    yield from (data[at : at + 1] for at in range(len(data)))
    yield from itertools.repeat(b" ")


DRIPPING: dict[str, Parts] = {
    "in the status line": lambda: _bytes_of(b"HTTP/1.1 2"),
    "in a header": lambda: _bytes_of(HEAD + b"X: "),
    "in a body of a length": lambda: _bytes_of(
        HEAD + b"Content-Length: 90000\r\n\r\n{"
    ),
    "in a body without": lambda: _bytes_of(HEAD + b"\r\n{"),
    "in chunks": lambda: itertools.chain([CHUNKED], itertools.repeat(b"1\r\n \r\n")),
}


@pytest.mark.parametrize("where", DRIPPING)
def test_an_answer_that_drips_reaches_the_deadline(where):
    with (
        Peer(DRIPPING[where], pace=SHORT_S / 10) as peer,
        http_client(peer, SHORT_S) as client,
    ):
        with pytest.raises(
            ServerUnreachableError, match=r"did not answer within 0\.3 s"
        ):
            client.server_metadata()
        with pytest.raises(
            ServerUnreachableError, match=r"did not answer within 0\.3 s"
        ):
            client.async_predict("digits", [1]).result()


ENDLESS: dict[str, Parts] = {
    "100 Continue": lambda: itertools.repeat(CONTINUE * 1000),
    "102 Processing": lambda: itertools.repeat(
        b"HTTP/1.1 102 Processing\r\n\r\n" * 1000
    ),
    "headers": lambda: itertools.chain([HEAD], itertools.repeat(b"X: y\r\n" * 1000)),
    "a header": lambda: itertools.chain(
        [HEAD + b"X: "], itertools.repeat(b"y" * 65536)
    ),
    "a body": lambda: itertools.chain(
        [HEAD + b"\r\n["], itertools.repeat(b"1," * 30_000)
    ),
    "a body of a length": lambda: itertools.chain(
        [HEAD + b"Content-Length: 99999999999\r\n\r\n["],
        itertools.repeat(b"1," * 30_000),
    ),
    "chunks": lambda: itertools.chain(
        [CHUNKED], itertools.repeat(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
    ),
    "the size of a chunk": lambda: itertools.chain(
        [CHUNKED], itertools.repeat(b"0" * 65536)
    ),
    "the end of chunks": lambda: itertools.chain(
        [CHUNKED + b"0\r\n"], itertools.repeat(b"X: y\r\n" * 1000)
    ),
    "a packed page": lambda: [
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Encoding: gzip\r\n\r\n",
        packed(),
    ],
    "a packed answer": lambda: [HEAD + b"Content-Encoding: gzip\r\n\r\n", packed()],
}


@functools.cache
def packed() -> bytes:
    return gzip.compress(bytes(PACKED_BYTES), 1)


@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_answer_is_cut_off_by_its_size(what):
    """The call fails by the number of bytes, long before the deadline, without keeping
    them.
    """
    packed()
    with Peer(ENDLESS[what]) as peer, http_client(peer) as client:
        tracemalloc.start()
        try:
            with pytest.raises(PocketserveError) as caught:
                client.index()
            held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert "did not answer within" not in str(caught.value)
        assert held < PACKED_BYTES / 2


ANSWERS = [
    HEAD + b"Content-Length: 2\r\n\r\n[]",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n",
    HEAD
    + b"Inference-Header-Content-Length: 14\r\nContent-Length: 14\r\n\r\n"
    + b'{"outputs":[]}',
    b'HTTP/1.1 404 Not Found\r\nContent-Length: 29\r\n\r\n{"error": "no", "code": "XY"}',
]


def damaged(seed: int) -> bytes:
    """Return one of our answers, randomly damaged."""
    chance = random.Random(seed)
    data = bytearray(chance.choice(ANSWERS))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        odd = [
            b"",
            b"-1",
            b"9" * 5000,
            b"\r\n",
            b"\0",
            b"\xff",
            b":",
            b"{",
            bytes(data[: chance.randrange(40)]),
        ]
        data[at : at + chance.choice([0, 1, 1, 5])] = chance.choice(odd)
    return bytes(data)


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_damaged_answers_raise_our_errors(first):
    for seed in range(first, first + 100):
        data = damaged(seed)
        with Peer(lambda data=data: [data]) as peer, http_client(peer, 5.0) as client:  # type: ignore[misc]
            for call in (
                client.index,
                client.open_pairing,
                lambda: client.infer("m", {}),
                client.is_ready,
            ):
                with contextlib.suppress(PocketserveError):
                    call()  # type: ignore[operator]


# --- The socket

CHALLENGE = json_frame(
    FrameType.CHALLENGE,
    dumps(
        {
            "v": 1,
            "nonce": "5a" * 16,
            "auth": "none",
        }
    ),
)
LIMITS = {
    "max_frame": 4096,
    "max_inflight": 1,
    "max_bytes_inflight": 4096,
    "idle_ms": 60_000,
    "server": "x",
}
OPEN = CHALLENGE + json_frame(FrameType.READY, dumps(LIMITS))
PING = encode_frame(Frame(FrameType.PING, arg=1))
STRAY = encode_frame(
    Frame(
        FrameType.RESPONSE, request_id=77, arg=200, json_length=2, body=bytearray(b"{}")
    )
)
TALKING: dict[str, Parts] = {
    "in the challenge": lambda: _bytes_of(CHALLENGE[:20]),
    "in ready": lambda: itertools.chain(
        [CHALLENGE], _bytes_of(OPEN[len(CHALLENGE) :][:30])
    ),
    "in an answer": lambda: itertools.chain(
        [OPEN], _bytes_of(STRAY[:24]), itertools.repeat(b"")
    ),
    "pings": lambda: itertools.chain([OPEN], itertools.repeat(PING)),
    "answers that nobody asked for": lambda: itertools.chain(
        [OPEN], itertools.repeat(STRAY)
    ),
}


def socket_client(peer: Peer) -> Client:
    return Client(
        f"socket://127.0.0.1:{peer.port}",
        timeout=SHORT_S,
        reconnect=0.0,
        max_answer_bytes=MAX,
    )


@pytest.fixture(autouse=True)
def _no_token(monkeypatch, tmp_path):
    monkeypatch.delenv("POCKETSERVE_TOKEN", raising=False)
    monkeypatch.setenv("POCKETSERVE_TOKEN_FILE", str(tmp_path / "none"))


@pytest.mark.parametrize("what", TALKING)
def test_an_endless_socket_conversation_reaches_the_deadline(what):
    unreachable = pytest.raises(ServerUnreachableError)
    with (
        Peer(TALKING[what], pace=SHORT_S / 10) as peer,
        socket_client(peer) as client,
        unreachable,
    ):
        client.server_metadata()


@pytest.mark.parametrize("frame", [PING, STRAY], ids=["pings", "answers"])
def test_endless_frames_are_cut_off(frame, monkeypatch):
    """The server always has more to send than the client reads."""
    monkeypatch.setattr(socket_connection, "STALE_AFTER_S", 0.05)
    with (
        Peer(lambda: itertools.chain([OPEN], itertools.repeat(frame * 1000))) as peer,
        socket_client(peer) as client,
    ):
        for _ in range(2):  # the second request first checks the idle connection
            with pytest.raises(ServerUnreachableError):
                client.server_metadata()


def test_waiting_for_room_for_a_request_has_a_deadline():
    """The server takes one request at a time and never answers it."""
    pings = itertools.chain([OPEN], itertools.repeat(PING))
    with Peer(lambda: pings, pace=0.01) as peer, socket_client(peer) as client:
        client.async_predict("digits", [1])
        with pytest.raises(
            ServerUnreachableError, match="was not ready for this request"
        ):
            client.async_predict("digits", [1])


@pytest.mark.parametrize(
    "at_once", [False, True], ids=["after the handshake", "with its end"]
)
def test_an_answer_that_announces_too_much_is_refused(at_once):
    """The length is checked before memory is allocated."""
    head = encode_frame(
        Frame(FrameType.RESPONSE, request_id=1, arg=200, body=bytearray(MAX + 1))
    )[:24]
    unreachable = pytest.raises(ServerUnreachableError, match="violated the protocol")
    parts = itertools.chain(
        [OPEN + head] if at_once else [OPEN, head], itertools.repeat(b"")
    )
    with (
        Peer(lambda: parts, pace=0.01) as peer,
        socket_client(peer) as client,
        unreachable,
    ):
        client.server_metadata()


# --- Hostile answers to the command line

FOREIGN = [
    b"{}",
    b"[1]",
    b"[[]]",
    b'[{"name": 1}]',
    b'{"code": 5}',
    b'{"error": ["x"], "code": {}}',
    b"null",
]
COMMANDS = [
    ["models"],
    ["models", "--all"],
    ["models", "--check"],
    ["pair"],
    ["inspect", "m"],
    ["predict", "m", "1"],
]
COMMANDS += [["open", "--print"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("status", [200, 500])
def test_a_hostile_answer_is_reported_in_one_sentence(words, status, capsys):
    for body in FOREIGN:
        answer = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (
            status,
            len(body),
            body,
        )
        with Peer(
            lambda answer=answer: itertools.repeat(answer, 4), pace=0.001
        ) as peer:  # type: ignore[misc]
            code = main([*words, "--url", f"http://127.0.0.1:{peer.port}"])
        said = capsys.readouterr()
        assert code == 1 and said.err.count("\n") == 1, (body, said)
        assert "Error:" not in said.err and "pocketserve: " in said.err, (body, said)


def test_a_pairing_that_stays_open_reaches_the_deadline(capsys):
    """A server may claim that its pairing is open until the year 3000."""
    said = [{"code": "1234567890", "remaining_s": 1e300, "state": "open"}] * 20 + [
        {"state": "expired"}
    ] * 20
    answers = (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
        for body in map(dumps, said)
    )
    with Peer(lambda: [next(answers)]) as peer:
        assert main(["pair", "--url", f"http://127.0.0.1:{peer.port}"]) == 1
    assert "not one of a pocketserve server" in capsys.readouterr().err
