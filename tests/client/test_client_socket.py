"""The client's socket transport: threads, deferred calls and reconnects."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pocketserve_client.client as facade
from conftest import MODELS, STATE, Server, StartServer
from pocketserve_client import (
    AddressError,
    Client,
    ConnectionLostError,
    NotOurServerError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client import connection as connection_module
from ports import free_port

TIMEOUT_S = 120.0
pytestmark = pytest.mark.live


def address(server: Server) -> str:
    """Return the address of the server's socket."""
    return f"socket://127.0.0.1:{server.ready['socket']['port']}"


def flowers(first: int, rows: int) -> np.ndarray:
    """Return rows that no other call sends."""
    return (np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) % 7 + first % 11) / 2


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """Create a client of the shared server."""
    with Client(address(server), server.token, timeout=TIMEOUT_S) as one:
        yield one


def test_threads_share_one_connection(server, client):
    """Each thread gets its own answer, whichever thread reads it."""
    expected = {
        n: client.infer("petals", {"features": flowers(n, n % 5 + 1)})["petal_width"]
        for n in range(40)
    }

    def ask(number: int) -> None:
        for n in range(number, number + 40):
            n %= 40
            given = client.infer("petals", {"features": flowers(n, n % 5 + 1)})[
                "petal_width"
            ]
            np.testing.assert_allclose(given, expected[n], rtol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(ask, number) for number in range(8)]:
            done.result(TIMEOUT_S)


def test_deferred_calls_wait_independently(client):
    """Many are sent before the first answer is read.

    Answers are read in any order.
    """
    calls = [
        client.async_infer("petals", {"features": flowers(n, 2)}) for n in range(100)
    ]
    for n in reversed(range(100)):
        alone = client.infer("petals", {"features": flowers(n, 2)})["petal_width"]
        np.testing.assert_allclose(calls[n].result()["petal_width"], alone, rtol=1e-5)
        assert calls[n].done()
        np.testing.assert_array_equal(
            calls[n].result()["petal_width"], calls[n].result()["petal_width"]
        )
    with pytest.raises(ServerError) as refused:
        client.async_predict("nothing", b"x").result()
    assert refused.value.code == "MODEL_NOT_FOUND"


def test_more_threads_than_the_servers_request_limit(new_server):
    """They wait for a free slot; none fails or gets 429."""
    server = new_server(MODELS, "--socket-inflight", "2")
    with (
        Client(address(server), server.token, timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(12) as pool,
    ):
        calls = [
            pool.submit(client.infer, "petals", {"features": flowers(n, 1)})
            for n in range(240)
        ]
        for n, call in enumerate(calls):
            alone = client.infer("petals", {"features": flowers(n, 1)})["petal_width"]
            np.testing.assert_allclose(
                call.result(TIMEOUT_S)["petal_width"], alone, rtol=1e-5
            )


def test_several_threads_get_the_answer_of_one_call(client):
    call = client.async_infer(
        "digits", {"image": np.zeros((5000, 8, 8, 1), np.float32)}
    )
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(call.result) for _ in range(4)]
        assert {answer.result(TIMEOUT_S)["scores"].shape for answer in answers} == {
            (5000, 10)
        }


def test_large_bodies_in_both_directions_at_once(client):
    """Neither side may wait for the other.

    More bytes are in transit than the buffers can store.
    """
    image = np.random.default_rng(0).random((20_000, 8, 8, 1), dtype=np.float32)
    calls = [client.async_infer("digits", {"image": image}) for _ in range(6)]
    answers = [call.result()["scores"] for call in calls]
    assert all(answer.shape == (20_000, 10) for answer in answers)
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


def test_a_cancelled_call_is_answered(client):
    """It ends as cancelled, or with a faster result."""
    call = client.async_predict("petals", [1, 2, 3])
    call.cancel()
    try:
        ended = call.result()["model"]
    except ServerError as error:
        ended = error.code
    assert ended in ("petals", "CANCELLED")
    assert client.predict("petals", [1, 2, 3])["model"] == "petals"


def test_a_body_that_is_too_large_is_not_sent(new_server):
    """The server's greeting states the limit."""
    server = new_server(MODELS, "--max-body-bytes", "4096")
    with Client(address(server), server.token) as client:
        with pytest.raises(ServerError) as refused:
            client.predict("digits", bytes(4097))
        assert (refused.value.status, refused.value.code) == (413, "BODY_TOO_LARGE")
        assert client.is_ready()


@pytest.fixture
def start(new_server: StartServer) -> Callable[[], Server]:
    """Return a function that starts a server without a token.

    Each call uses the same ports.
    """
    ports = ("--http-port", str(free_port()), "--socket-port", str(free_port()))
    return lambda: new_server(MODELS, *ports, "--no-auth")


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_restarted_server_loses_no_call(start, transport):
    """The new server answers pending calls and the next one."""
    first = start()
    url = f"{transport}://127.0.0.1:{first.ready[transport]['port']}"
    with Client(
        url, token_file=first.log.with_name("none"), reconnect=TIMEOUT_S
    ) as client:
        assert client.predict("petals", [1, 2, 3])["model"] == "petals"
        asked = threading.Event()

        def ask() -> int:
            answered = 0
            for _ in range(300):
                answered += client.predict("petals", [1, 2, 3])["model"] == "petals"
                asked.set()
            return answered

        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(ask) for _ in range(2)]
            assert asked.wait(TIMEOUT_S)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(TIMEOUT_S)
            start()
            assert [call.result(2 * TIMEOUT_S) for call in calls] == [300, 300]
        assert client.predict("petals", [1, 2, 3])["model"] == "petals"


def test_calls_with_side_effects_are_not_retried(start):
    """The lost server may have executed the call."""
    server = start()
    with Client(address(server), token_file=server.log.with_name("none")) as client:
        client.load("petals")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(TIMEOUT_S)
        with pytest.raises(ConnectionLostError):
            client.load("petals")


def test_a_frozen_server_is_detected(new_server, monkeypatch):
    """Android freezes apps like that.

    Connections and bytes are accepted, but never answered.
    """
    server = new_server(MODELS)
    with Client(address(server), server.token, reconnect=0.0) as first:
        # Loads the model; a load sends nothing for as long as it takes.
        first.predict("petals", [1, 2, 3])
    monkeypatch.setattr(connection_module, "PING_AFTER_S", 0.2)
    with Client(
        address(server), server.token, timeout=TIMEOUT_S, reconnect=0.0
    ) as client:
        client.is_ready()
        os.kill(server.process.pid, signal.SIGSTOP)
        # Until all of its threads are stopped.
        os.waitpid(server.process.pid, os.WUNTRACED)
        try:
            with pytest.raises(ConnectionLostError, match="sent nothing for"):
                client.predict("petals", [1, 2, 3])
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        monkeypatch.undo()
        assert client.predict("petals", [1, 2, 3])["model"] == "petals"


def test_a_server_that_shuts_down_is_replaced(start):
    """After GOAWAY, pending calls finish.

    The next call connects to a new server.
    """
    first = start()
    with Client(
        address(first), token_file=first.log.with_name("none"), reconnect=TIMEOUT_S
    ) as client:
        call = client.async_predict("petals", [1, 2, 3])
        # Read after the other, which the server has accepted by now.
        assert client.predict("petals", [1, 2, 3])
        assert first.stop() == 0
        second = start()
        assert call.result()["model"] == "petals"
        assert client.predict("petals", [1, 2, 3])["model"] == "petals"
        assert second.process.poll() is None


# --- Other programs on the port


def test_a_wrong_token_is_reported(server):
    with (
        Client(address(server), "x" * 43) as client,
        pytest.raises(ServerError) as refused,
    ):
        client.is_model_ready("digits") or client.infer("digits", {})
    assert (refused.value.status, refused.value.code) == (401, "UNAUTHORIZED")


def test_a_missing_token_is_reported(server):
    with (
        Client(address(server), token_file=server.log.with_name("none")) as client,
        pytest.raises(ServerError) as no,
    ):
        client.model_metadata("digits")
    assert (no.value.status, no.value.code) == (401, "UNAUTHORIZED")


def test_a_client_with_a_token_rejects_a_server_without_one(new_server):
    """Another program on the port may ask for no token."""
    server = new_server(MODELS, "--no-auth")
    with (
        Client(address(server), "x" * 43) as client,
        pytest.raises(NotOurServerError, match="does not require"),
    ):
        client.model_metadata("digits")


def test_choose_the_transport_automatically(server, monkeypatch):
    """The socket if reachable, otherwise HTTP.

    Neither is used if another program has the socket's port.
    """
    monkeypatch.delenv("POCKETSERVE_URL", raising=False)
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(STATE))
    monkeypatch.setattr(facade, "DEFAULT_URL", server.url)
    monkeypatch.setattr(facade, "SOCKET_PORT", server.ready["socket"]["port"])
    with Client(token=server.token) as client:
        assert client.predict("petals", [1, 2, 3])["model"] == "petals"
        assert client._sender.transport._current is client._sender.transport._socket
    monkeypatch.setattr(facade, "SOCKET_PORT", free_port())
    with Client(token=server.token) as client:
        assert [client.predict("petals", [1, 2, 3])["model"] for _ in range(2)] == [
            "petals"
        ] * 2
        assert client._sender.transport._current is client._sender.transport._http


@pytest.mark.parametrize("manner", ["hangs up", "is silent", "talks nonsense"])
def test_another_program_on_the_sockets_port_gets_no_token(server, monkeypatch, manner):
    """HTTP is not tried either.

    The other program may use that port, too.
    """
    asked = []
    with (
        socket.create_server(("127.0.0.1", 0)) as other_program,
        socket.create_server(("127.0.0.1", 0)) as http,
    ):
        monkeypatch.delenv("POCKETSERVE_URL", raising=False)
        monkeypatch.setattr(
            facade, "DEFAULT_URL", f"http://127.0.0.1:{http.getsockname()[1]}"
        )
        monkeypatch.setattr(facade, "SOCKET_PORT", other_program.getsockname()[1])
        http.setblocking(False)

        def receive() -> None:
            guest, _ = other_program.accept()
            with guest:
                asked.append(guest.recv(4096))
                if manner == "talks nonsense":
                    guest.sendall(b"nonsense" * 10)
                if manner == "is silent":
                    guest.settimeout(TIMEOUT_S)
                    guest.recv(1)

        with (
            ThreadPoolExecutor(1) as pool,
            Client(token="t" * 43, timeout=0.5) as client,
        ):
            listening = pool.submit(receive)
            with pytest.raises(ServerUnreachableError):
                client.model_metadata("digits")
            listening.result(TIMEOUT_S)
        assert b"t" * 43 not in asked[0]
        with pytest.raises(BlockingIOError):
            http.accept()


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_closed_client_is_an_error(server, transport):
    client = Client(
        f"{transport}://127.0.0.1:{server.ready[transport]['port']}", server.token
    )
    assert client.is_ready()
    client.close()
    for call in (
        client.is_ready,
        lambda: client.async_predict("petals", [1, 2, 3]).result(),
    ):
        with pytest.raises(ServerUnreachableError, match="closed"):
            call()


FORK_WITH_LOCKS_HELD = """
import os, signal, sys
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import OCTETS, Request

transport = SocketTransport(("127.0.0.1", int(sys.argv[1])), sys.argv[2], 30.0)
connection = transport.connect()
call = transport.start(Request("POST", "/predictions/petals", [b"[5.1,3.5,1.4]"], 0, OCTETS))
with connection._state, connection._writing, connection._reading:  # as by threads that the child does not have
    child = os.fork()
    if not child:
        signal.alarm(10)
        for end in (call.cancel, connection.retire, connection.close, transport.close):
            end()
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert call.result().status == 200
transport.close()
"""


def test_a_forked_process_closes_a_connection_in_use(server):
    """No thread of the parent releases a lock in the child."""
    command = [
        sys.executable,
        "-c",
        FORK_WITH_LOCKS_HELD,
        str(server.ready["socket"]["port"]),
        server.token,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_call_that_could_not_be_sent_is_done(new_server):
    """A program that polls it must not poll forever."""
    server = new_server(MODELS)
    with Client(address(server), server.token, reconnect=0.1) as client:
        assert client.is_ready()
        server.stop()
        call = client.async_predict("petals", [1, 2, 3])
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                call.result()
            assert call.done()


@pytest.mark.parametrize(
    "url",
    [
        "socket://", "socket://127.0.0.1", "socket://127.0.0.1:99999", "socket://h:1/path", "127.0.0.1:8470",
        "localhost", "ftp://h:1", "http://", "http://h:x", "http://[::1",
    ],
)  # fmt: skip
def test_invalid_addresses(url):
    with pytest.raises(AddressError, match="looks like http"):
        Client(url, "x")


def test_no_server_listens():
    with Client(f"socket://127.0.0.1:{free_port()}", "x") as client:
        with pytest.raises(ServerUnreachableError, match="is the server running"):
            client.is_ready()
        with pytest.raises(ServerUnreachableError):
            client.async_predict("digits", b"").result()
