"""Answers in OpenAI's form, from the engine's events: whole, or as server-sent events."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

from pocketserve.api.messages import ApiResponse, json_response
from pocketserve.api.openai.logprobs import CompletionLogprobs, chat_logprobs
from pocketserve.api.openai.tools import ForcedCall
from pocketserve.inference.generation import Generation
from pocketserve_wire import strict_json

EVENT_STREAM: Final = "text/event-stream"
DONE: Final = b"data: [DONE]\n\n"
_ID_BYTES: Final = 12


class EventAnswer(Protocol):
    """Turns the engine's events into the client's answer."""

    def part(self, event: Mapping[str, Any]) -> bytes:
        """Return the bytes of a server-sent event."""
        ...

    def respond(self, result: Generation) -> ApiResponse:
        """Return the whole answer, or the end of one that was sent in parts."""
        ...


class _OpenAIAnswer:
    """Common parts of chats and completions.

    Args:
        fields: the request's.
        created: seconds since 1970.
        logprobs: alternatives for each token.
    """

    prefix = ""
    kind = ""
    part_kind = ""

    def __init__(
        self, fields: Mapping[str, Any], created: int, logprobs: int = 0
    ) -> None:
        options = fields.get("stream_options", {})
        self._alternatives = logprobs
        self._model: str = fields["model"]
        self._streams = bool(fields.get("stream"))
        self._wants_usage = bool(options.get("include_usage"))
        self._created = created
        self._id = f"{self.prefix}-{os.urandom(_ID_BYTES).hex()}"
        self._has_begun = False

    def part(self, event: Mapping[str, Any]) -> bytes:
        """Return a chunk; of the prompt's progress a comment, which clients skip."""
        start = b"" if self._has_begun else self._first_part()
        self._has_begun = True
        comment = progress_comment(event)
        if comment is not None:
            return start + comment
        return start + self._chunk(event)

    def _chunk(self, event: Mapping[str, Any]) -> bytes:
        choices = []
        for engines_choice in self._translate(event).get("choices", ()):
            choice = self._part_choice(engines_choice)
            if choice is not None:
                choices.append(choice)
        usage = event.get("usage")
        if not choices and not (usage and self._wants_usage):
            return b""
        chunk = self._head(self.part_kind) | {"choices": choices}
        if self._wants_usage:
            chunk["usage"] = None if choices else _usage(usage)
        return as_event(chunk)

    def _first_part(self) -> bytes:
        """Return what comes before the first piece of the text."""
        return b""

    def respond(self, result: Generation) -> ApiResponse:
        """Return the whole answer, or the end of a stream."""
        if not self._streams:
            return json_response(self._whole(result.events))
        if not result.events:
            return ApiResponse(content_type=EVENT_STREAM, chunks=[DONE])
        # The transport sends whole answers only.
        parts: list[bytes | memoryview] = [self.part(event) for event in result.events]
        return ApiResponse(content_type=EVENT_STREAM, chunks=[*parts, DONE])

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }

    def _whole(self, events: list[Mapping[str, Any]]) -> dict[str, Any]:
        choice = self._empty_choice()
        usage: Mapping[str, Any] = {}
        for event in events:
            usage = event.get("usage") or usage
            for part in self._translate(event).get("choices", ()):
                if part.get("finish_reason"):
                    choice["finish_reason"] = part["finish_reason"]
                self._add(choice, part)
        return self._head(self.kind) | {"choices": [choice], "usage": _usage(usage)}

    def _translate(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an event as it is to be read."""
        return event

    def _empty_choice(self) -> dict[str, Any]:
        raise NotImplementedError

    def _add(self, choice: dict[str, Any], part: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _part_choice(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a choice of a chunk; None if it adds nothing."""
        raise NotImplementedError


class ChatAnswer(_OpenAIAnswer):
    """The answer to a chat.

    Args:
        call: reads the answer if it must be a call.
    """

    prefix = "chatcmpl"
    kind = "chat.completion"
    part_kind = "chat.completion.chunk"

    def __init__(
        self,
        fields: Mapping[str, Any],
        created: int,
        logprobs: int = 0,
        call: ForcedCall | None = None,
    ) -> None:
        super().__init__(fields, created, logprobs)
        self._forced_call = call

    def _translate(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._forced_call is None:
            return event
        return self._forced_call.translate(event)

    def _first_part(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        chunk = self._head(self.part_kind) | {"choices": [choice]}
        if self._wants_usage:
            chunk["usage"] = None
        return as_event(chunk)

    def _empty_choice(self) -> dict[str, Any]:
        content = "" if self._forced_call is None else None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        return {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": None,
        }

    def _part_choice(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        delta = dict(choice.get("delta") or {})
        # The first part has the role. Clients join the roles of all parts.
        is_engines_first = delta.pop("role", None) is not None
        if is_engines_first and delta.get("content") is None:
            delta.pop("content", None)
        finish_reason = choice.get("finish_reason")
        if not delta and finish_reason is None:
            return None
        part = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        logprobs = chat_logprobs(choice.get("logprobs"), self._alternatives)
        if logprobs is not None:
            part["logprobs"] = logprobs
        return part

    def _add(self, choice: dict[str, Any], part: Mapping[str, Any]) -> None:
        delta, message = part.get("delta", {}), choice["message"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls") or ():
            _add_call(message.setdefault("tool_calls", []), call)
        logprobs = chat_logprobs(part.get("logprobs"), self._alternatives)
        if logprobs is None:
            return
        if choice["logprobs"] is None:
            choice["logprobs"] = logprobs
            return
        choice["logprobs"]["content"] += logprobs["content"]


class CompletionAnswer(_OpenAIAnswer):
    """The answer to a prompt that is completed as it is."""

    prefix = "cmpl"
    kind = "text_completion"
    part_kind = "text_completion"

    def __init__(
        self, fields: Mapping[str, Any], created: int, logprobs: int = 0
    ) -> None:
        super().__init__(fields, created, logprobs)
        self._logprobs = CompletionLogprobs(logprobs, len(fields["prompt"]))

    def _empty_choice(self) -> dict[str, Any]:
        return {"index": 0, "text": "", "logprobs": None, "finish_reason": None}

    def _part_choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "index": 0,
            "text": choice.get("text") or "",
            "logprobs": self._logprobs.lists(choice.get("logprobs")),
            "finish_reason": choice.get("finish_reason"),
        }

    def _add(self, choice: dict[str, Any], part: Mapping[str, Any]) -> None:
        choice["text"] += part.get("text") or ""
        lists = self._logprobs.lists(part.get("logprobs"))
        if lists is None:
            return
        if choice["logprobs"] is None:
            choice["logprobs"] = lists
            return
        for name, values in lists.items():
            choice["logprobs"][name] += values


def as_event(chunk: Mapping[str, Any]) -> bytes:
    """Return a JSON object as a server-sent event."""
    return b"data: " + strict_json.dumps(chunk) + b"\n\n"


def progress_comment(event: Mapping[str, Any]) -> bytes | None:
    """Return the prompt's progress as a comment; None for another event."""
    progress = event.get("prompt_progress")
    if progress is None:
        return None
    count, total = progress.get("processed"), progress.get("total")
    return f": prompt {count}/{total}\n\n".encode()


def _add_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    """Add a piece of a tool call; the pieces of one share an index."""
    index = part.get("index", 0)
    while len(calls) <= index:
        function = {"name": "", "arguments": ""}
        calls.append({"id": "", "type": "function", "function": function})
    call = calls[index]
    call["id"] = part.get("id") or call["id"]
    for name, text in (part.get("function") or {}).items():
        if name in call["function"] and text:
            call["function"][name] += text


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the counts of tokens."""
    usage = usage or {}
    prompt = usage.get("prompt_tokens", 0)
    generated = usage.get("completion_tokens", 0)
    details = usage.get("prompt_tokens_details") or {}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": details.get("cached_tokens", 0)},
    }
