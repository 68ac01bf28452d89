"""Use language models through our clients and the command line."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from conftest import Server
from pocketserve_client import Client, ServerError
from pocketserve_client.aio.async_client import AsyncClient

pytestmark = pytest.mark.llm
TIMEOUT_S = 300.0
FIELDS = {"max_tokens": 8, "temperature": 0}


def socket_url(server: Server) -> str:
    return f"socket://127.0.0.1:{server.socket_port}"


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_errors_have_our_codes(llm_server: Server, transport: str) -> None:
    url = llm_server.url if transport == "http" else socket_url(llm_server)
    with Client(url, llm_server.token) as client:
        for model, text, code in (
            ("nothing", "Hello", "MODEL_NOT_FOUND"),
            ("tiny", "x" * 3000, "CONTEXT_EXCEEDED"),
        ):
            with pytest.raises(ServerError) as caught:
                client.chat(model, text).text()
            assert caught.value.code == code


def test_closing_a_stream_frees_the_model(llm_server: Server) -> None:
    with Client(llm_server.url, llm_server.token) as client:
        for _ in range(5):
            with client.chat("tiny", "Hello", max_tokens=400) as stream:
                next(stream)
        assert client.chat("tiny", "Hello", **FIELDS).text()


def test_asyncio_yields_pieces(llm_server: Server) -> None:
    async def collect() -> list[str]:
        async with AsyncClient(llm_server.url, llm_server.token) as client:
            return [piece async for piece in client.chat("tiny", "Hello", **FIELDS)]

    with Client(llm_server.url, llm_server.token) as client:
        assert (
            "".join(asyncio.run(collect()))
            == client.chat("tiny", "Hello", **FIELDS).text()
        )


def test_the_command_answers_piped_input(llm_server: Server) -> None:
    command = [sys.executable, "-m", "pocketserve", "chat", "tiny", "--max-tokens", "8"]
    command += ["--temperature", "0", "--url", llm_server.url]
    environment = {**os.environ, "POCKETSERVE_TOKEN": str(llm_server.token)}
    output = subprocess.run(
        command,
        input=b"Hello",
        capture_output=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=True,
    ).stdout
    assert output.strip()
    assert b"\x1b" not in output
