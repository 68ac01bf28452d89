"""Language models over the socket: answers in parts, and every way to stop one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Server
from framed import Framed
from pocketserve_client import Client
from pocketserve_client.aio.async_client import AsyncClient
from pocketserve_wire.frames import Frame, FrameType

from .conftest import LONG, LONG_TOKENS

pytestmark = pytest.mark.llm
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
FIELDS = {"max_tokens": 12, "temperature": 0}
DYING_CLIENT = """
import os, sys
from pocketserve_client import Client
client = Client(sys.argv[1], os.environ["POCKETSERVE_TOKEN"])
stream = client.chat("long", "Hello", max_tokens=60000)
print(next(stream), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def peer(llm_server: Server) -> Iterator[Framed]:
    with llm_server.connect(takes_parts=True) as connection:
        yield connection


def ask(peer: Framed, model: str = "tiny", arg: int = 0, **fields: Any) -> int:
    body = json.dumps(
        {
            "model": model,
            "messages": HELLO,
            **fields,
        }
    ).encode()
    return peer.ask(f"POST {CHAT}", body, arg=arg)


def ask_long(peer: Framed, arg: int = 0) -> int:
    """Ask for an answer that takes minutes."""
    return ask(peer, LONG, arg, max_tokens=LONG_TOKENS, stream=True)


def read_answer(peer: Framed) -> tuple[list[bytes], Frame]:
    """Return the bodies of all PARTs, and the RESPONSE."""
    parts = []
    while (frame := peer.next()).type == FrameType.PART:
        parts.append(bytes(frame.body))
    assert frame.type == FrameType.RESPONSE
    return parts, frame


def without_names(stream: bytes) -> bytes:
    """Return events without what differs for each answer."""
    names = rb'"id":"[^"]+"|"created":[0-9]+|: prompt [^\n]+|"cached_tokens":[0-9]+'
    return re.sub(names, b"", stream)


def assert_free(server: Server) -> None:
    """Check that the model answers at once: what ran before has ended."""
    answer = server.call(
        "POST",
        f"{CHAT}?timeout_ms=60000",
        data=json.dumps(
            {
                "model": LONG,
                "messages": HELLO,
                "max_tokens": 2,
            }
        ).encode(),
    )
    assert answer.status_code == 200, answer.text


def client_of(server: Server, transport: str) -> Client:
    url = server.url
    if transport == "socket":
        url = f"socket://127.0.0.1:{server.socket_port}"
    return Client(url, server.token)


def test_parts_are_the_body_of_http(llm_server: Server, peer: Framed) -> None:
    fields = {
        "stream": True,
        "stream_options": {"include_usage": True},
        **FIELDS,
    }
    body = json.dumps(
        {
            "model": "tiny",
            "messages": HELLO,
            **fields,
        }
    ).encode()
    over_http = llm_server.call("POST", CHAT, data=body).content
    ask(peer, **fields)
    parts, response = read_answer(peer)
    assert response.arg == 200
    assert response.ext == {2: b"text/event-stream"}
    assert len(parts) > FIELDS["max_tokens"]
    stream = b"".join([*parts, bytes(response.body)])
    assert without_names(stream) == without_names(over_http)


def test_clients_that_did_not_offer_parts_get_none(llm_server: Server) -> None:
    with llm_server.connect() as peer:
        ask(peer, stream=True, **FIELDS)
        parts, response = read_answer(peer)
    assert not parts
    assert response.arg == 200
    assert bytes(response.body).endswith(b"data: [DONE]\n\n")


def test_other_requests_are_answered_between_parts(peer: Framed) -> None:
    ask_long(peer)
    assert peer.next().type == FrameType.PART
    ready = peer.ask("GET /v2/health/ready")
    while (frame := peer.next()).type == FrameType.PART:
        pass
    assert (frame.type, frame.request_id) == (FrameType.RESPONSE, ready)
    assert peer.next().type == FrameType.PART


def test_generates_text_in_parts_for_triton(peer: Framed) -> None:
    body = {"text_input": "Hello", "parameters": FIELDS}
    peer.ask("POST /v2/models/tiny/generate_stream", json.dumps(body).encode())
    parts, response = read_answer(peer)
    assert response.arg == 200
    assert len(parts) == FIELDS["max_tokens"]


def test_cancel_stops_the_model(llm_server: Server, peer: Framed) -> None:
    request = ask_long(peer)
    assert peer.next().type == FrameType.PART
    peer.cancel(request)
    _, response = read_answer(peer)
    assert response.arg == 499
    assert_free(llm_server)


@pytest.mark.parametrize("takes_parts", [True, False])
def test_a_closed_connection_stops_the_model(
    llm_server: Server, takes_parts: bool
) -> None:
    with llm_server.connect(takes_parts=takes_parts) as peer:
        ask_long(peer)
        peer.ping(1) if not takes_parts else peer.frame(FrameType.PART)
    assert_free(llm_server)


def test_a_client_that_dies_stops_the_model(llm_server: Server) -> None:
    url = f"socket://127.0.0.1:{llm_server.socket_port}"
    client = subprocess.Popen(
        [sys.executable, "-c", DYING_CLIENT, url],
        env={**os.environ, "POCKETSERVE_TOKEN": str(llm_server.token)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with client:
        assert client.stdout is not None
        assert client.stdout.readline()
        client.send_signal(signal.SIGKILL)
    assert_free(llm_server)


def test_a_queued_request_of_a_client_that_left_is_not_run(
    llm_server: Server, peer: Framed
) -> None:
    first = ask_long(peer)
    peer.frame(FrameType.PART)
    with llm_server.connect(takes_parts=True) as other:
        ask_long(other)
        other.ping(1)
    peer.cancel(first)
    read_answer(peer)
    assert_free(llm_server)


def test_the_deadline_counts_while_the_model_works(
    llm_server: Server, peer: Framed
) -> None:
    ask_long(peer, arg=1500)
    _, response = read_answer(peer)
    assert response.arg == 504
    assert json.loads(bytes(response.body))["error"]["code"] == "deadline_exceeded"
    assert_free(llm_server)


def test_an_engine_that_dies_ends_the_answer(llm_server: Server, peer: Framed) -> None:
    ask_long(peer)
    peer.frame(FrameType.PART)
    for pid in engines_of(llm_server):
        os.kill(pid, signal.SIGKILL)
    _, response = read_answer(peer)
    assert response.arg == 500
    assert_free(llm_server)


def engines_of(server: Server) -> list[int]:
    """Return the process ids of a server's engines."""
    command = ["ps", "-o", "pid=,args=", "--ppid", str(server.process.pid)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split(None, 1) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, words in lines if "runtimes.llm.child" in words]


def test_transports_bring_the_same_pieces(llm_server: Server) -> None:
    answers = []
    for transport in ("http", "socket"):
        with client_of(llm_server, transport) as client:
            stream = client.chat("tiny", "Hello", **FIELDS)
            pieces = list(stream)
            usage = stream.usage["completion_tokens"]
            answers.append((pieces, stream.finish_reason, usage))
    assert answers[0] == answers[1]
    assert len(answers[0][0]) > 1


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_closing_a_stream_stops_the_model(llm_server: Server, transport: str) -> None:
    with client_of(llm_server, transport) as client:
        with client.chat(LONG, "Hello", max_tokens=LONG_TOKENS) as stream:
            assert next(stream)
        assert next(stream, None) is None
        assert_free(llm_server)


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_another_thread_may_close_a_stream(llm_server: Server, transport: str) -> None:
    with client_of(llm_server, transport) as client:
        stream = client.chat(LONG, "Hello", max_tokens=LONG_TOKENS)
        assert next(stream)
        threading.Timer(0.1, stream.close).start()
        stream.text()
        assert_free(llm_server)


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_cancelled_task_stops_the_model(llm_server: Server, transport: str) -> None:
    url = llm_server.url
    if transport == "socket":
        url = f"socket://127.0.0.1:{llm_server.socket_port}"

    async def read(begun: asyncio.Event) -> None:
        async with AsyncClient(url, llm_server.token) as client:
            async for _ in client.chat(LONG, "Hello", max_tokens=LONG_TOKENS):
                begun.set()

    async def cancel() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(read(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert_free(llm_server)
