"""Chats with language models, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketserve_client.errors import (
    ConnectionLostError,
    NotOurServerError,
    ServerError,
)
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import Answer, Request
from pocketserve_wire import strict_json

if TYPE_CHECKING:
    from pocketserve_client.calls import RequestSender

CHAT_PATH = "/v1/chat/completions"
CHAT_TIMEOUT_S = 600.0
"""Seconds for an answer: language models take their time."""

_PREFIX = b"data: "
_DONE = b"[DONE]"

Messages = str | Sequence[Mapping[str, Any]]


class ChatStream(Iterator[str]):
    """The pieces of a chat's answer, as they come; a context that ends the answer.

    Over the socket protocol the whole text comes as one piece.

    Attributes:
        finish_reason: ``stop``, ``length`` or ``tool_calls``, once the answer has ended.
        usage: counts of tokens, once the answer has ended.
    """

    def __init__(self, lines: Iterator[bytes] | None, whole: Answer | None) -> None:
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] = {}
        self._lines = lines
        self._pieces = self._read(lines) if lines is not None else self._parse(whole)

    def __next__(self) -> str:
        return next(self._pieces)

    def __enter__(self) -> ChatStream:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the answer; the model stops."""
        close = getattr(self._lines, "close", None)
        if close is not None:
            close()

    def text(self) -> str:
        """Return the rest of the answer."""
        return "".join(self)

    def _read(self, lines: Iterator[bytes]) -> Iterator[str]:
        for line in lines:
            if not line.startswith(_PREFIX):
                continue
            data = line[len(_PREFIX) :].strip()
            if data == _DONE:
                return
            event = _event(data)
            if "error" in event:
                raise _fault(event["error"])
            yield from self._piece(event, "delta")
        raise ConnectionLostError("the server ended in the middle of an answer")

    def _parse(self, answer: Answer | None) -> Iterator[str]:
        if answer is not None:
            yield from self._piece(_event(bytes(answer.body)), "message")

    def _piece(self, event: Mapping[str, Any], member: str) -> Iterator[str]:
        if event.get("usage"):
            self.usage = event["usage"]
        for choice in event.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            text = choice.get(member, {}).get("content")
            if text:
                yield text


def start_chat(
    sender: RequestSender,
    model: str,
    messages: Messages,
    fields: Mapping[str, Any],
    timeout: float | None,
) -> ChatStream:
    """Send a chat, and return its answer as it comes."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    body = {"model": model, "messages": [dict(message) for message in messages]}
    seconds = CHAT_TIMEOUT_S if timeout is None else timeout
    if isinstance(sender.transport, SocketTransport):
        request = _request({**body, **fields}, seconds)
        return ChatStream(None, sender.send(request))
    options = {"include_usage": True}
    streamed = {**body, **fields, "stream": True, "stream_options": options}
    lines = sender.stream(_request(streamed, seconds))
    return ChatStream(lines, None)


def _fault(error: Any) -> ServerError:
    """Return the error that ended an answer after its first piece."""
    details = error if isinstance(error, dict) else {"message": error}
    code = str(details.get("code") or "").upper()
    return ServerError(500, code, str(details.get("message")))


def _request(body: Mapping[str, Any], timeout: float) -> Request:
    chunks = (strict_json.dumps(body),)
    request = Request("POST", CHAT_PATH, chunks, idempotent=False)
    return request.within(timeout)


def _event(data: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise NotOurServerError("the server sent an event that is no JSON object")
    return event
