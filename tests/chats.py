"""Ask a server's language models over HTTP, in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

from conftest import Server

CALLER = "caller"
"""A model that calls the function get_weather."""
CALL = (
    b"<tool_call>",
    b'\n{"name": "get_weather", ',
    b'"arguments": ',
    b'{"city": "Oslo"}',
    b"}\n</tool_call>",
)
SPELLER = "speller"
"""A model that writes a word with a letter of two tokens."""
SPELLING = (b"caf", b"\xc3", b"\xa9", b" noir", b"!")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NO_END = {"0": -100, "2": -100}
"""Keeps the model's random weights from ending an answer early."""

HELLO = [{"role": "user", "content": "Hello"}]


def ask(server: Server, path: str, **fields: Any) -> Any:
    return server.call("POST", path, data=json.dumps(fields).encode())


def chat(server: Server, **fields: Any) -> Any:
    request = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 4,
    }
    request |= {"logit_bias": NO_END} | fields
    return ask(server, CHAT, **request)


def events(answer: Any) -> list[Any]:
    """Return a stream's events without the last one."""
    assert answer.headers["Content-Type"] == "text/event-stream"
    parts = [part for part in answer.text.split("\n\n") if part.startswith("data: ")]
    assert parts[-1] == "data: [DONE]"
    return [json.loads(part[6:]) for part in parts[:-1]]


def named(name: str) -> dict[str, Any]:
    """Return the choice of one function."""
    return {"type": "function", "function": {"name": name}}
