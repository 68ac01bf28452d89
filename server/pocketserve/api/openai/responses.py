"""OpenAI's responses, in a thin form: text in, text out, answered as a chat."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Final

from pocketserve.api.messages import (
    WAITING_QUERY,
    ApiRequest,
    ApiResponse,
    json_response,
    refuse_unknown_query,
)
from pocketserve.api.openai.answers import EVENT_STREAM, as_event, progress_comment
from pocketserve.api.openai.field_table import (
    IGNORED,
    TEXTS_ONLY,
    TOKEN_LIMIT,
    RefusedField,
    ignore,
)
from pocketserve.api.openai.fields import (
    MAX_MESSAGES,
    FieldCheck,
    NumberField,
    bad_field,
    check_effort,
    check_flag,
    check_format,
    check_messages,
    check_small_object,
    check_text,
    read_fields,
)
from pocketserve.api.openai.generate import CHAT, apply_effort, generate_answer
from pocketserve.api.openai.schemas import check_schema
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.generation import Generation, texts_of
from pocketserve.service import Service
from pocketserve_wire import strict_json
from pocketserve_wire.strict_json import json_type

_ID_BYTES: Final = 12
_PART_TYPES: Final[Mapping[str, str]] = {
    "input_text": "text",
    "output_text": "text",
    "input_image": "image_url",
    "input_file": "file",
}
"""A chat's names for the types of parts."""


def create_response(service: Service, request: ApiRequest) -> InferenceCall:
    """Answer a text or messages; with ``"stream": true`` piece by piece."""
    refuse_unknown_query(request, *WAITING_QUERY)
    content = strict_json.loads_object(request.body)
    fields = read_fields(content, RESPONSE_FIELDS, ("model", "input"))
    answer = ResponseAnswer(fields, int(time.time()))
    return generate_answer(service, request, CHAT, _chat_of(fields), answer)


def _chat_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat that asks for the same."""
    chat = {}
    for name in ("model", "stream", "temperature", "top_p"):
        if name in fields:
            chat[name] = fields[name]
    instructions = fields.get("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] = [*system, *fields["input"]]
    if "max_output_tokens" in fields:
        chat["max_tokens"] = fields["max_output_tokens"]
    if fields.get("text") is not None:
        chat["response_format"] = fields["text"]
    if fields.get("reasoning") is not None:
        chat["reasoning_effort"] = fields["reasoning"]
    apply_effort(chat)
    return chat


def _check_input(field: str, value: Any) -> list[dict[str, Any]]:
    """Return the messages of a chat."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        limit = f"a list of 1 to {MAX_MESSAGES} messages"
        raise bad_field(field, f"must be a text, or {limit}")
    messages = []
    for number, item in enumerate(value):
        messages.append(_message_of(f"{field}[{number}]", item))
    return check_messages(field, messages)


def _message_of(field: str, item: Any) -> dict[str, Any]:
    """Return an item of the input in the form of a chat."""
    if not isinstance(item, dict):
        raise bad_field(field, f"must be an object, not {json_type(item)}")
    if item.get("type", "message") != "message":
        raise bad_field(f"{field}.type", "must be message: there are no tools here")
    content = item.get("content")
    if isinstance(content, list):
        content = [_part_of(part) for part in content]
    role = item.get("role")
    if role == "tool":
        raise bad_field(f"{field}.role", "must not be tool: there are no tools here")
    return {"role": role, "content": content}


def _part_of(part: Any) -> Any:
    """Return a part of a content in the form of a chat."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if isinstance(kind, str):
        kind = _PART_TYPES.get(kind, kind)
    return {**part, "type": kind}


def _check_text_form(field: str, value: Any) -> dict[str, Any] | None:
    """Return a chat's ``response_format``."""
    content = check_small_object(field, value)
    for key in content:
        if key not in ("format", "verbosity"):
            raise bad_field(f"{field}.{key:.70}", "is unknown; known is format")
    place = f"{field}.format"
    form = content.get("format")
    if form is None:
        form = {"type": "text"}
    form = check_small_object(place, form)
    if form.get("type") != "json_schema":
        return check_format(place, form)
    schema = check_small_object(f"{place}.schema", form.get("schema"))
    check_schema(f"{place}.schema", schema)
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _check_reasoning(field: str, value: Any) -> str | None:
    """Return a chat's ``reasoning_effort``."""
    content = check_small_object(field, value)
    for key, item in content.items():
        if key != "effort" and item is not None:
            raise bad_field(f"{field}.{key:.70}", "is not supported; known is effort")
    effort = content.get("effort")
    return None if effort is None else check_effort(f"{field}.effort", effort)


_NOT_KEPT = "answers are not kept here"
_NO_TOOLS = "there are no tools on this route; use /v1/chat/completions"
RESPONSE_FIELDS: Final[Mapping[str, FieldCheck]] = {
    **IGNORED,
    "model": check_text,
    "input": _check_input,
    "instructions": check_text,
    "stream": check_flag,
    "max_output_tokens": TOKEN_LIMIT,
    "temperature": NumberField(0, 2),
    "top_p": NumberField(0, 1),
    "text": _check_text_form,
    "reasoning": _check_reasoning,
    "user": ignore,
    "stream_options": ignore,
    "parallel_tool_calls": ignore,
    "max_tool_calls": ignore,
    "background": RefusedField(_NOT_KEPT, (False,)),
    "background_options": RefusedField(_NOT_KEPT),
    "conversation": RefusedField(f"{_NOT_KEPT}; send earlier messages in input"),
    "previous_response_id": RefusedField(
        f"{_NOT_KEPT}; send earlier messages in input"
    ),
    "prompt": RefusedField("there are no stored prompts here; use instructions"),
    "tools": RefusedField(_NO_TOOLS, ([],)),
    "tool_choice": RefusedField(_NO_TOOLS, ("auto", "none")),
    "access_programs": RefusedField(_NO_TOOLS),
    "include": RefusedField("there is nothing else to include", ([],)),
    "top_logprobs": RefusedField("use /v1/chat/completions", (0,)),
    "truncation": RefusedField("prompts are never shortened", ("disabled",)),
    "context_management": RefusedField("prompts are never shortened"),
    "image": TEXTS_ONLY,
    "moderation": RefusedField("nothing here moderates answers"),
}
"""``docs/text-generation.md`` lists them."""


class ResponseAnswer:
    """The answer to a request for a response.

    Args:
        fields: the request's.
        created: seconds since 1970.
    """

    def __init__(self, fields: Mapping[str, Any], created: int) -> None:
        self._fields = fields
        self._created = created
        self._id = f"resp_{os.urandom(_ID_BYTES).hex()}"
        self._message_id = f"msg_{os.urandom(_ID_BYTES).hex()}"
        self._texts: list[str] = []
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._events = 0

    def part(self, event: Mapping[str, Any]) -> bytes:
        """Return the bytes of one of the engine's events."""
        start = self._begin()
        comment = progress_comment(event)
        if comment is not None:
            return start + comment
        text = self._note(event)
        if not text:
            return start
        return start + self._text_event("delta", delta=text, logprobs=[])

    def respond(self, result: Generation) -> ApiResponse:
        """Return the whole answer, or the end of a stream."""
        if not self._fields.get("stream"):
            for event in result.events:
                self._note(event)
            return json_response(self._document(self._status))
        parts: list[bytes | memoryview] = [self.part(event) for event in result.events]
        parts += [self._begin(), self._end()]
        return ApiResponse(content_type=EVENT_STREAM, chunks=parts)

    def _note(self, event: Mapping[str, Any]) -> str:
        """Remember an event; return its text."""
        text = "".join(texts_of(event))
        self._texts.append(text)
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices", ()):
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        return text

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish_reason == "length" else "completed"

    def _begin(self) -> bytes:
        """Return the events before the first text, once."""
        if self._events:
            return b""
        document = self._document("in_progress")
        return b"".join(
            (
                self._event("response.created", response=document),
                self._event("response.in_progress", response=document),
                self._item_event("added", item=self._message("in_progress", [])),
                self._part_event("added", part=_text_part("")),
            )
        )

    def _end(self) -> bytes:
        """Return the events after the last text."""
        status = self._status
        text = "".join(self._texts)
        part = _text_part(text)
        document = self._document(status)
        return b"".join(
            (
                self._text_event("done", text=text, logprobs=[]),
                self._part_event("done", part=part),
                self._item_event("done", item=self._message(status, [part])),
                self._event(f"response.{status}", response=document),
            )
        )

    def _event(self, kind: str, **content: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._events, **content}
        self._events += 1
        return f"event: {kind}\n".encode() + as_event(event)

    def _item_event(self, step: str, **content: Any) -> bytes:
        return self._event(f"response.output_item.{step}", output_index=0, **content)

    def _part_event(self, step: str, **content: Any) -> bytes:
        return self._event(f"response.content_part.{step}", **self._place(), **content)

    def _text_event(self, step: str, **content: Any) -> bytes:
        return self._event(f"response.output_text.{step}", **self._place(), **content)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _message(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _document(self, status: str) -> dict[str, Any]:
        """Return the response as an object."""
        is_running = status == "in_progress"
        output: list[Any] = []
        if not is_running:
            part = _text_part("".join(self._texts))
            output.append(self._message(status, [part]))
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        fields = self._fields
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": fields["model"],
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "temperature": fields.get("temperature"),
            "top_p": fields.get("top_p"),
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": False,
            "store": False,
            "output": output,
            "usage": None if is_running else self._counts(),
        }

    def _counts(self) -> dict[str, Any]:
        """Return the counts of tokens."""
        usage = self._usage
        prompt = usage.get("prompt_tokens", 0)
        generated = usage.get("completion_tokens", 0)
        details = usage.get("prompt_tokens_details") or {}
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": details.get("cached_tokens", 0)},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + generated,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}
