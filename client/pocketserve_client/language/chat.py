"""Chats with language models, piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketserve_client.language.events import (
    ANSWER_TIMEOUT_S,
    AnswerStream,
    EventLines,
)
from pocketserve_client.transport import Request
from pocketserve_wire import strict_json

if TYPE_CHECKING:
    from pocketserve_client.calls import RequestSender

CHAT_PATH = "/v1/chat/completions"
Messages = str | Sequence[Mapping[str, Any]]


class ChatStream(AnswerStream, Iterator[str]):
    """The pieces of a chat's answer, as they come; a context that ends the answer.

    Attributes:
        finish_reason: ``stop``, ``length`` or ``tool_calls``, once the answer has ended.
        usage: counts of tokens, once the answer has ended.
    """

    def __init__(self, events: EventLines) -> None:
        super().__init__(events)
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] = {}
        self._pieces: deque[str] = deque()

    def __next__(self) -> str:
        while not self._pieces:
            if self._has_ended:
                raise StopIteration
            self._read_event()
        return self._pieces.popleft()

    def text(self) -> str:
        """Return the rest of the answer."""
        return "".join(self)

    def _read_event(self) -> None:
        event = self._events.next()
        if event is None:
            self._has_ended = True
            return
        self._add(event)

    def _add(self, event: Mapping[str, Any]) -> None:
        """Keep what an event adds to the answer."""
        if event.get("usage"):
            self.usage = event["usage"]
        for choice in event.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            text = choice.get("delta", {}).get("content")
            if text:
                self._pieces.append(text)


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
    seconds = ANSWER_TIMEOUT_S if timeout is None else timeout
    options = {"include_usage": True}
    streamed = {**body, **fields, "stream": True, "stream_options": options}
    return ChatStream(EventLines(sender.stream(_request(streamed, seconds))))


def _request(body: Mapping[str, Any], timeout: float) -> Request:
    chunks = (strict_json.dumps(body),)
    request = Request("POST", CHAT_PATH, chunks, idempotent=False)
    return request.within(timeout)
