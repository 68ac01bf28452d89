"""Answers in parts over the socket and over HTTP, by an engine that stands for a real one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

import gguf_files
import stand_in_engine
from conftest import Server, start_server
from pocketserve_client import Client
from pocketserve_wire.frames import FrameType

CHAT = "POST /v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
BODY = json.dumps(
    {
        "model": "m",
        "messages": HELLO,
        "stream": True,
    }
).encode()


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a language model."""
    folder = tmp_path_factory.mktemp("chatting")
    (folder / "models").mkdir()
    gguf_files.write_tiny(folder / "models" / "m.gguf")
    program = stand_in_engine.write(folder / "bin")
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    running = start_server(folder, folder / "models", environment={"PATH": path})
    yield running
    assert running.stop() == 0


def test_both_transports_bring_the_same_pieces(chatting: Server) -> None:
    for url in (chatting.url, f"socket://127.0.0.1:{chatting.socket_port}"):
        with Client(url, chatting.token) as client:
            stream = client.chat("m", "Hello")
            assert tuple(stream) == stand_in_engine.WORDS
            assert stream.finish_reason == "stop"
            assert stream.usage["completion_tokens"] == len(stand_in_engine.WORDS)


@pytest.mark.parametrize("takes_parts", [True, False])
def test_parts_are_sent_to_those_who_offer_them(
    chatting: Server, takes_parts: bool
) -> None:
    with chatting.connect(takes_parts=takes_parts) as peer:
        peer.ask(CHAT, BODY)
        bodies = []
        while (frame := peer.next()).type == FrameType.PART:
            bodies.append(bytes(frame.body))
    assert frame.type == FrameType.RESPONSE
    assert frame.arg == 200
    assert bool(bodies) is takes_parts
    whole = b"".join([*bodies, bytes(frame.body)])
    assert whole.endswith(b"data: [DONE]\n\n")
    assert whole.count(b'"content"') == len(stand_in_engine.WORDS) + 1
