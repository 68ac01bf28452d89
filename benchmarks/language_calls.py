"""Streamed chats with a server or an engine, timed."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
TIMEOUT_S = 300.0
NO_END = {"0": -100, "2": -100}
"""The tokens that end a text, in the toy and in SmolLM2: no answer may end early."""

QUESTION = "Tell me a story about a fox."


class ServerHttp(http.client.HTTPConnection):
    """A connection to a server of ours."""

    def __init__(self, port: int) -> None:
        super().__init__("127.0.0.1", port, timeout=TIMEOUT_S)

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class EngineHttp(http.client.HTTPConnection):
    """A connection to an engine's UNIX socket."""

    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class AnswerTimes:
    """The times of one answer, in seconds.

    Attributes:
        first_s: from the request to the first piece of text.
        last_s: from the request to the end.
        tokens: of the answer.
        prompt_tokens: of the prompt.
    """

    first_s: float
    last_s: float
    tokens: int
    prompt_tokens: int

    @property
    def token_s(self) -> float:
        """Return the time of a token after the first one."""
        return (self.last_s - self.first_s) / max(1, self.tokens - 1)

    @property
    def rate(self) -> float:
        """Return tokens per second after the first one."""
        return 1 / self.token_s


def chat_body(
    model: str, tokens: int, text: str = QUESTION, **more: Any
) -> dict[str, Any]:
    """Return a request for a chat of a fixed number of tokens."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "logit_bias": NO_END,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


def ask(connection: http.client.HTTPConnection, body: Mapping[str, Any]) -> AnswerTimes:
    """Send a request, read all of its stream, and time it."""
    data = json.dumps(body)
    began = time.perf_counter()
    first = last = 0.0
    usage: Mapping[str, Any] = {}
    for event in _events(connection, data):
        usage = event.get("usage") or usage
        if _text_of(event):
            last = time.perf_counter() - began
            first = first or last
    return AnswerTimes(first, last, usage["completion_tokens"], usage["prompt_tokens"])


class OpenStream:
    """A stream that is left before its end."""

    def __init__(
        self, connection: http.client.HTTPConnection, body: Mapping[str, Any]
    ) -> None:
        self._connection = connection
        connection.connect()
        self._socket = connection.sock
        connection.request("POST", CHAT, json.dumps(body))
        self._lines: Iterator[bytes] | None = None

    def wait_for(self, kind: str) -> None:
        """Read until the next piece of text, or the next progress of the prompt.

        Args:
            kind: ``text`` or ``progress``.

        Raises:
            EOFError: the stream ended before.
        """
        if self._lines is None:
            answer = self._connection.getresponse()
            _check(answer)
            self._lines = iter(answer.readline, b"")
        for line in self._lines:
            if kind == "progress" and line.startswith(b": prompt"):
                return
            is_event = line.startswith(b"data: {")
            if kind == "text" and is_event and _text_of(json.loads(line[6:])):
                return
        raise EOFError(f"the stream ended before its {kind}")

    def close(self) -> None:
        """Leave.

        The response would keep the connection open.
        """
        self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _events(
    connection: http.client.HTTPConnection, data: str
) -> Iterator[Mapping[str, Any]]:
    connection.request("POST", CHAT, data)
    answer = connection.getresponse()
    _check(answer)
    for line in iter(answer.readline, b""):
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _check(answer: http.client.HTTPResponse) -> None:
    """Raise ValueError if a request was refused."""
    if answer.status != 200:
        text = answer.read().decode(errors="replace")
        raise ValueError(f"the request was refused: {text:.300}")


def _text_of(event: Mapping[str, Any]) -> str:
    for choice in event.get("choices", ()):
        text: str = choice["delta"].get("content") or ""
        return text
    return ""
