"""Triton's generate extension: one prompt in, text out, whole or in parts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pocketserve.api.messages import (
    WAITING_QUERY,
    ApiRequest,
    ApiResponse,
    inference_call,
    json_response,
    refuse_unknown_query,
    waiting_parameters,
)
from pocketserve.api.openai.answers import EVENT_STREAM, as_event
from pocketserve.api.openai.field_table import COMPLETION_FIELDS, NOT_FOR_ENGINE
from pocketserve.api.openai.fields import (
    FieldCheck,
    bad_field,
    check_prompt,
    check_small_object,
    read_fields,
)
from pocketserve.api.openai.generate import COMPLETIONS, answer_deadline
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.generation import Generation, texts_of
from pocketserve.inference.payload import GenerationPayload
from pocketserve.service import Service
from pocketserve_wire import strict_json

_BODY: Final[Mapping[str, FieldCheck]] = {
    "text_input": check_prompt,
    "parameters": check_small_object,
}
_PARAMETERS: Final[Mapping[str, FieldCheck]] = {
    name: check
    for name, check in COMPLETION_FIELDS.items()
    if name not in NOT_FOR_ENGINE and name not in ("prompt", "logprobs", "suffix")
}


def generate_whole(service: Service, request: ApiRequest) -> InferenceCall:
    """Complete a text, whole."""
    body = _read(request)
    if body.get("stream"):
        raise bad_field("parameters.stream", "must be false; use generate_stream")
    return _call(service, request, body, streams=False)


def generate_stream(service: Service, request: ApiRequest) -> InferenceCall:
    """Complete a text, piece by piece where the transport can do that."""
    return _call(service, request, _read(request), streams=True)


def _read(request: ApiRequest) -> dict[str, Any]:
    refuse_unknown_query(request, *WAITING_QUERY)
    content = strict_json.loads_object(request.body)
    fields = read_fields(content, _BODY, ("text_input",))
    parameters = read_fields(fields.get("parameters", {}), _PARAMETERS, ())
    return parameters | {"prompt": fields["text_input"]}


def _call(
    service: Service, request: ApiRequest, body: dict[str, Any], *, streams: bool
) -> InferenceCall:
    name = request.path["model"]
    version = service.status(name, request.path.get("version")).version
    head = {"model_name": name, "model_version": version}
    body["stream"] = streams and request.parts is not None
    waiting = waiting_parameters(request)
    send = partial(_send, request, head, body["stream"])
    payload = GenerationPayload(
        COMPLETIONS,
        body,
        on_event=send,
        deadline=answer_deadline(request, waiting),
        on_wait=request.check_parts,
    )
    respond = partial(_end_stream if streams else _respond, head)
    return inference_call(service, request, payload, waiting, respond)


def _send(
    request: ApiRequest,
    head: Mapping[str, Any],
    streams: bool,
    event: Mapping[str, Any],
) -> None:
    if request.parts is None:
        return
    text = "".join(texts_of(event))
    if streams and text:
        request.parts.send(as_event({**head, "text_output": text}))
    else:
        request.parts.check()


def _respond(head: Mapping[str, Any], result: Generation) -> ApiResponse:
    return json_response({**head, "text_output": result.text()})


def _end_stream(head: Mapping[str, Any], result: Generation) -> ApiResponse:
    """Return the end of a stream, or all of it where no part was sent."""
    text = result.text()
    chunks: list[bytes | memoryview] = []
    if text:
        chunks.append(as_event({**head, "text_output": text}))
    return ApiResponse(content_type=EVENT_STREAM, chunks=chunks)
