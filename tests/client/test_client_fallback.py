"""The fallback server answers only requests that the first server cannot take now."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from conftest import MODELS, Server
from held_server import TOKEN, HeldServer
from pocketserve_client import (
    AddressError,
    Client,
    FallbackServer,
    ServerError,
    ServerUnreachableError,
)

pytestmark = pytest.mark.live
FLOWER = np.array([[5.1, 3.5, 1.4]], np.float32)
DIGIT = (MODELS / "digits/samples/7.png").read_bytes()
BACKGROUND = {"priority": 6}  # a server with low power rejects these
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    """Hide the user's token and settings."""
    for name in [name for name in os.environ if name.startswith("POCKETSERVE_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture(params=["http", "socket"])
def transport(request) -> str:
    return request.param


@pytest.fixture
def phone(new_server) -> Server:
    """Start a server that may be killed and that rejects background work."""
    return new_server(MODELS, "--low-power", "on", "--load", "petals")


def url(server: Server, transport: str) -> str:
    return f"{transport}://127.0.0.1:{server.ready[transport]['port']}"


@pytest.fixture
def client(phone, server, transport) -> Iterator[Client]:
    """Return a client with a fallback.

    The first server is the phone's, the second the shared one. Each has its own token.
    """
    assert phone.token != server.token
    fallback = FallbackServer(url(server, transport), server.token)
    with Client(
        url(phone, transport), phone.token, timeout=LIMIT_S, fallback=fallback
    ) as one:
        yield one


def successes(server: Server, model: str) -> int:
    content = server.call("GET", f"/v2/models/{model}/stats").json()["model_stats"]
    return sum(entry["inference_stats"]["success"]["count"] for entry in content)


def kill(server: Server) -> None:
    server.process.kill()
    server.process.wait(LIMIT_S)


def test_the_first_server_answers_while_it_can(client, phone, server, transport):
    before = successes(server, "petals")
    answer = client.predict("petals", FLOWER.tolist())
    outputs = client.infer("petals", {"features": FLOWER})
    assert answer.server == outputs.server == url(phone, transport)
    assert json.loads(json.dumps(answer)) == answer
    assert successes(server, "petals") == before


def test_the_fallback_answers_for_a_killed_server(client, phone, server, transport):
    first = client.infer("petals", {"features": FLOWER})
    kill(phone)
    second = client.infer("petals", {"features": FLOWER})
    np.testing.assert_array_equal(first["petal_width"], second["petal_width"])
    assert second.server == url(server, transport)
    labels = client.predict("digits", DIGIT, top_k=1)
    assert labels["predictions"][0]["label"] == "7"
    assert labels.server == url(server, transport)
    picture = client.predict("digits", DIGIT, annotate="png")
    assert picture.startswith(b"\x89PNG")
    assert picture.server == url(server, transport)
    assert client.model_metadata("petals")["name"] == "petals"


def test_the_fallback_answers_calls_started_without_waiting(
    client, phone, server, transport
):
    calls = [client.async_infer("petals", {"features": FLOWER}) for _ in range(4)]
    assert {call.result().server for call in calls} == {url(phone, transport)}
    kill(phone)
    calls = [client.async_predict("petals", FLOWER.tolist()) for _ in range(4)]
    assert [call.result().server for call in calls] == [url(server, transport)] * 4
    assert calls[0].result() is not None  # a second time


def test_a_rejected_request_goes_to_the_fallback(client, phone, server, transport):
    assert client.predict(
        "petals", FLOWER.tolist(), parameters=BACKGROUND
    ).server == url(server, transport)
    call = client.async_infer("petals", {"features": FLOWER}, parameters=BACKGROUND)
    assert call.result().server == url(server, transport)
    assert client.predict("petals", FLOWER.tolist()).server == url(phone, transport)
    with (
        Client(url(phone, transport), phone.token) as alone,
        pytest.raises(ServerError) as refusal,
    ):
        # Never by itself.
        alone.predict("petals", FLOWER.tolist(), parameters=BACKGROUND)
    assert refusal.value.code == "LOW_POWER"


def test_a_full_queue_goes_to_the_fallback(server, transport, tmp_path):
    """Covers QUEUE_FULL (429) while busy and SHUTTING_DOWN (503) at the end.

    Between them the first server answers.
    """
    first = HeldServer(tmp_path, queue_limit=1)
    sockets, http, _token = first.addresses
    address = (
        f"http://127.0.0.1:{http}"
        if transport == "http"
        else f"socket://127.0.0.1:{sockets}"
    )
    fallback = FallbackServer(url(server, transport), server.token)
    try:
        with (
            ThreadPoolExecutor(1) as pool,
            Client(address, TOKEN, timeout=LIMIT_S, fallback=fallback) as client,
            Client(address, TOKEN, timeout=LIMIT_S) as alone,
        ):
            first.model.hold(pool)
            try:
                waiting = first.model.send(
                    lambda: first.model.peer.ask("POST /predictions/digits", DIGIT)
                )
                refused_by_the_first(
                    client, alone, "QUEUE_FULL", url(server, transport)
                )
            finally:
                first.model.go()
            answer = first.model.peer.answer()
            assert (answer.request_id, answer.status) == (waiting, 200)
            assert client.predict("digits", DIGIT).server == address
            first.service.drain(0)
            refused_by_the_first(client, alone, "SHUTTING_DOWN", url(server, transport))
    finally:
        first.close()


def refused_by_the_first(client: Client, alone: Client, code: str, other: str) -> None:
    """Check both kinds of call.

    Without a fallback both raise the error.
    """
    with pytest.raises(ServerError) as refusal:
        alone.predict("digits", DIGIT)
    assert refusal.value.code == code
    answer = client.predict("digits", DIGIT, top_k=1)
    assert (answer.server, answer["predictions"][0]["label"]) == (other, "7")
    assert client.async_predict("digits", DIGIT).result().server == other


def test_an_invalid_request_is_not_sent_to_the_fallback(client, phone, server):
    before = successes(server, "petals")
    for wrong in (
        lambda: client.predict("petals", [1.0]),
        lambda: client.infer("no-such-model", {"x": FLOWER}),
    ):
        with pytest.raises(ServerError) as refusal:
            wrong()
        assert not getattr(refusal.value, "__notes__", [])
    assert successes(server, "petals") == before


def test_calls_about_one_server_stay_there(client, phone, server):
    kill(phone)
    for call in (
        lambda: client.load("petals"),
        lambda: client.unload("petals"),
        client.open_pairing,
        client.close_pairing,
        client.pairing_state,
        client.index,
        client.statistics,
        client.server_metadata,
        client.is_ready,
        lambda: client.infer(
            "petals",
            {"features": FLOWER},
            parameters={"sequence_id": 5, "sequence_start": True},
        ),
        lambda: client.predict(
            "petals",
            FLOWER.tolist(),
            parameters={"sequence_id": 5, "sequence_start": True},
        ),
    ):
        with pytest.raises(ServerUnreachableError):
            call()
    assert server.call("GET", "/v2/models/petals/ready").status_code == 200


def test_a_frozen_server_leaves_time_for_the_fallback(phone, server, transport):
    """Half of the time is spent on the frozen server.

    Its kernel still accepts connections.
    """
    fallback = FallbackServer(url(server, transport), server.token)
    begin = time.monotonic()
    phone.process.send_signal(signal.SIGSTOP)
    try:
        with Client(
            url(phone, transport), phone.token, timeout=4.0, fallback=fallback
        ) as client:
            assert client.predict("petals", FLOWER.tolist()).server == url(
                server, transport
            )
            assert client.async_predict(
                "petals", FLOWER.tolist()
            ).result().server == url(server, transport)
    finally:
        phone.process.send_signal(signal.SIGCONT)
    assert time.monotonic() - begin < LIMIT_S


def test_the_error_names_a_frozen_server(phone, transport):
    def ask() -> None:
        address = url(phone, transport)
        with Client(address, phone.token, timeout=1.0, reconnect=0.0) as client:
            client.predict("petals", FLOWER.tolist())

    phone.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(ServerUnreachableError) as error:
            ask()
    finally:
        phone.process.send_signal(signal.SIGCONT)
    message = str(error.value)
    assert "did not answer within 1 s" in message
    assert "process stopped or frozen; on a phone, open Termux" in message


def test_both_servers_share_one_deadline(new_server, phone, transport):
    """Two frozen servers take only the call's own timeout.

    The error names both.
    """
    other = new_server(MODELS)
    fallback = FallbackServer(url(other, transport), other.token)
    with Client(
        url(phone, transport), phone.token, timeout=2.0, fallback=fallback
    ) as client:
        for each in (phone, other):
            each.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        try:
            with pytest.raises(ServerUnreachableError) as error:
                client.predict("petals", FLOWER.tolist())
            assert time.monotonic() - begin < LIMIT_S
            assert (
                f"the fallback {url(other, transport)} did not answer either"
                in error.value.__notes__[0]
            )
        finally:
            for each in (phone, other):
                each.process.send_signal(signal.SIGCONT)


def test_the_timeout_of_a_wait_covers_both_servers():
    """The wait overrides the client's longer timeout.

    Only the kernel accepts the connections.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        urls = [
            f"http://127.0.0.1:{listener.getsockname()[1]}"
            for listener in (first, second)
        ]
        with Client(urls[0], timeout=600.0, fallback=FallbackServer(urls[1])) as client:
            begin = time.monotonic()
            with pytest.raises(ServerUnreachableError) as error:
                client.async_predict("petals", [1.0]).result(timeout=0.5)
            assert "did not answer either" in error.value.__notes__[0]
            assert time.monotonic() - begin < LIMIT_S


@pytest.mark.parametrize("token", [None, "", "another-token-of-32-characters-at-least"])
def test_the_fallback_never_gets_the_first_servers_token(
    phone, server, transport, token, monkeypatch
):
    """Applies to a given token and the environment's.

    A wrong token does not hide the first error.
    """
    monkeypatch.setenv("POCKETSERVE_TOKEN", server.token)
    fallback = FallbackServer(url(server, transport), token)
    with Client(url(phone, transport), phone.token, fallback=fallback) as client:
        with pytest.raises(ServerError) as error:
            client.predict("petals", FLOWER.tolist(), parameters=BACKGROUND)
        assert error.value.code == "LOW_POWER"
        assert "did not answer either" in error.value.__notes__[0]


def test_the_fallback_token_comes_from_a_file(phone, server, transport, tmp_path):
    path = tmp_path / "token"
    path.write_text(server.token)
    fallback = FallbackServer(url(server, transport), token_file=path)
    with Client(url(phone, transport), phone.token, fallback=fallback) as client:
        assert client.predict(
            "petals", FLOWER.tolist(), parameters=BACKGROUND
        ).server == url(server, transport)


def test_invalid_fallbacks_are_rejected():
    with pytest.raises(TypeError, match="FallbackServer"):
        Client("http://127.0.0.1:1", fallback="http://127.0.0.1:2")
    for address in ("", "ftp://127.0.0.1:2"):
        with pytest.raises(AddressError):
            Client("http://127.0.0.1:1", fallback=FallbackServer(address))
