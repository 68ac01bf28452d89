"""OpenAI's interface to language models: chats, completions and embeddings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from pocketserve.api.messages import (
    WAITING_QUERY,
    ApiRequest,
    inference_call,
    refuse_unknown_query,
    waiting_parameters,
)
from pocketserve.api.openai.answers import ChatAnswer, CompletionAnswer, EventAnswer
from pocketserve.api.openai.field_table import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    NOT_FOR_ENGINE,
)
from pocketserve.api.openai.fields import FieldCheck, bad_field, read_fields
from pocketserve.api.openai.logprobs import ask_for_chat, ask_for_completion
from pocketserve.api.openai.tools import ForcedCall, apply_choice
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import GenerationPayload
from pocketserve.service import Service
from pocketserve_wire import strict_json

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def chat_completion(service: Service, request: ApiRequest) -> InferenceCall:
    """Continue a chat; with ``"stream": true`` piece by piece."""
    fields = _read(request, CHAT_FIELDS, ("model", "messages"))
    limits = [fields.get(name) for name in ("max_tokens", "max_completion_tokens")]
    known_limits = [limit for limit in limits if limit is not None]
    if known_limits:
        fields["max_tokens"] = min(known_limits)
    apply_effort(fields)
    logprobs = ask_for_chat(fields)
    call = ForcedCall() if apply_choice(fields) else None
    answer = ChatAnswer(fields, int(time.time()), logprobs, call)
    return generate_answer(service, request, CHAT, fields, answer)


def completion(service: Service, request: ApiRequest) -> InferenceCall:
    """Complete a text as it is; with ``"stream": true`` piece by piece."""
    fields = _read(request, COMPLETION_FIELDS, ("model", "prompt"))
    logprobs = ask_for_completion(fields)
    answer = CompletionAnswer(fields, int(time.time()), logprobs)
    return generate_answer(service, request, COMPLETIONS, fields, answer)


def _read(
    request: ApiRequest, checks: Mapping[str, FieldCheck], required: tuple[str, ...]
) -> dict[str, Any]:
    refuse_unknown_query(request, *WAITING_QUERY)
    fields = read_fields(strict_json.loads_object(request.body), checks, required)
    if "stream_options" in fields and not fields.get("stream"):
        raise bad_field("stream_options", "needs stream: true")
    return fields


def apply_effort(fields: dict[str, Any]) -> None:
    """Hand ``reasoning_effort`` to the template of a model that knows it."""
    effort = fields.pop("reasoning_effort", None)
    if effort is not None:
        options = fields.get("chat_template_kwargs", {})
        fields["chat_template_kwargs"] = {"reasoning_effort": effort} | options


def generate_answer(
    service: Service,
    request: ApiRequest,
    path: str,
    fields: Mapping[str, Any],
    answer: EventAnswer,
) -> InferenceCall:
    """Ask the model that checked fields name, and answer with its events.

    Args:
        path: of the engine.
    """
    body = {name: value for name, value in fields.items() if name not in NOT_FOR_ENGINE}
    if request.parts is None:
        body.pop("stream", None)
    waiting = waiting_parameters(request)
    payload = GenerationPayload(
        path,
        body,
        on_event=partial(_send, request, bool(body.get("stream")), answer),
        deadline=answer_deadline(request, waiting),
        on_wait=request.check_parts,
    )
    of_model = request_of_model(request, fields["model"])
    return inference_call(service, of_model, payload, waiting, answer.respond)


def answer_deadline(request: ApiRequest, waiting: Mapping[str, Any]) -> float | None:
    """Return the monotonic time by which the client wants the whole answer.

    None if it names none.
    """
    deadline = request.deadline
    timeout_us = waiting.get("timeout")
    if not timeout_us:
        return deadline
    arrived = request.received or time.monotonic()
    requested: float = arrived + timeout_us / 1e6
    return requested if deadline is None else min(requested, deadline)


def request_of_model(request: ApiRequest, model: str) -> ApiRequest:
    """Return a request for the model that the body names."""
    request.model = model
    return ApiRequest(
        {"model": model},
        owner=request.owner,
        deadline=request.deadline,
        cancellation=request.cancellation,
        received=request.received,
        execute=request.execute,
        keeps_thread=request.keeps_thread,
    )


def _send(
    request: ApiRequest, streams: bool, answer: EventAnswer, event: Mapping[str, Any]
) -> None:
    """Send a part of an answer, or end it if the client has gone."""
    if request.parts is None:
        return
    if streams:
        request.parts.send(answer.part(event))
    else:
        request.parts.check()
