"""Embeddings of texts in OpenAI's form, by any embedding model."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pocketserve.api.messages import (
    JSON,
    WAITING_QUERY,
    ApiRequest,
    ApiResponse,
    inference_call,
    json_response,
    refuse_unknown_query,
    waiting_parameters,
)
from pocketserve.api.openai.field_table import EMBEDDING_FIELDS
from pocketserve.api.openai.fields import read_fields
from pocketserve.api.openai.generate import answer_deadline, request_of_model
from pocketserve.api.openai.half_closed import check_whole
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.generation import Generation
from pocketserve.inference.payload import (
    GenerationPayload,
    Payload,
    Prediction,
    RawPayload,
)
from pocketserve.service import Service
from pocketserve.tasks.base import AnswerOptions, Hints
from pocketserve_wire import ApiError, ErrorCode, strict_json

EMBEDDINGS = "/v1/embeddings"


def embeddings(service: Service, request: ApiRequest) -> InferenceCall:
    """Return a vector for each text."""
    refuse_unknown_query(request, *WAITING_QUERY)
    content = strict_json.loads_object(request.body)
    fields = read_fields(content, EMBEDDING_FIELDS, ("model", "input"))
    model, texts = fields["model"], fields["input"]
    waiting = waiting_parameters(request)
    deadline = answer_deadline(request, waiting)
    check = check_whole(request.check_parts)
    payload = _payload(service, model, texts, deadline, check)
    return inference_call(
        service,
        request_of_model(request, model),
        payload,
        waiting,
        partial(_respond, fields),
    )


def _payload(
    service: Service,
    model: str,
    texts: Sequence[str],
    deadline: float | None,
    check: Callable[[], None] | None,
) -> Payload:
    """Return the texts for an engine, or for the task of another embedding model."""
    entry = service.entry(model)
    version = entry.versions.get(service.default_of(entry))
    if version is not None and version.format.name == "gguf":
        body = {"input": texts}
        return GenerationPayload(EMBEDDINGS, body, None, deadline, check)
    raw = memoryview(strict_json.dumps(texts))
    return RawPayload(raw, AnswerOptions(), Hints(JSON))


def _respond(fields: Mapping[str, Any], result: Generation | Prediction) -> ApiResponse:
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    if isinstance(result, Generation):
        answer = result.events[0]
        usage |= {name: answer.get("usage", {}).get(name, 0) for name in usage}
        vectors = [entry["embedding"] for entry in answer["data"]]
    else:
        vectors = _vectors(result)
    is_base64 = fields.get("encoding_format") == "base64"
    data = []
    for index, vector in enumerate(vectors):
        embedding = _base64(vector) if is_base64 else vector
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    document = {"object": "list", "data": data, "model": fields["model"]}
    return json_response(document | {"usage": usage})


def _vectors(result: Prediction) -> list[Any]:
    vectors = []
    for entries in result.per_input:
        for entry in entries:
            if "embedding" not in entry:
                text = f"{result.model!r} has no embeddings: its task is {result.task}"
                raise ApiError(ErrorCode.INVALID_REQUEST, text, field="model")
            vectors.append(entry["embedding"])
    return vectors


def _base64(vector: Sequence[float]) -> str:
    """Return the numbers as OpenAI's client reads them: little-endian float32."""
    data = struct.pack(f"<{len(vector)}f", *vector)
    return base64.b64encode(data).decode("ascii")
