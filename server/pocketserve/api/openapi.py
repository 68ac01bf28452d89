"""The interface in OpenAPI 3.1, generated from the dispatch table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pocketserve import __version__
from pocketserve.api.messages import ApiResponse, Route, json_response, load_handler
from pocketserve.tasks import parameters
from pocketserve.tasks.form import ACCEPTED
from pocketserve_wire import DATATYPES, ErrorCode
from pocketserve_wire.addresses import HTTP_PORT, LOOPBACK
from pocketserve_wire.limits import MAX_TENSOR_NAME_CHARS

Schema = dict[str, Any]


def _object(required: Sequence[str] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def _record(**properties: Schema) -> Schema:
    return _object(tuple(properties), **properties)


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
ANYTHING: Schema = {"type": "object"}
PARAMETERS: Schema = {
    "type": ["object", "null"],
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_TENSOR_NAME_CHARS}


def _choice(*texts: str) -> Schema:
    return {"type": "string", "enum": list(texts)}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _tensor(shape_minimum: int, **more: Schema) -> Schema:
    shape = _array({"type": "integer", "minimum": shape_minimum})
    required = ("name", "datatype", "shape")
    return _object(
        required,
        name=_NAME,
        datatype=_choice(*DATATYPES),
        shape=shape,
        parameters=PARAMETERS,
        **more,
    )


def _hexadecimal(length: int) -> Schema:
    return {"type": "string", "pattern": f"^[0-9a-fA-F]{{{2 * length}}}$"}


_FEATURE = _object(
    ("name", "type"),
    name=TEXT,
    unit=TEXT,
    type=_choice("number", "string"),
    minimum={"type": "number"},
    maximum={"type": "number"},
)

_PAIRING: dict[str, Schema] = {
    "state": _choice("closed", "open", "paired", "refused", "expired"),
    "remaining_s": {"type": "number", "minimum": 0},
    "tries": COUNT,
}


_GENERATION: dict[str, Schema] = {
    "model": TEXT,
    "messages": _array(ANYTHING),
    "prompt": {},
    "stream": FLAG,
    "max_tokens": COUNT,
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "seed": COUNT,
    "stop": {},
}
_TRANSCRIPT: Schema = _object(
    ("text",),
    text=TEXT,
    task=TEXT,
    language=TEXT,
    duration={"type": "number"},
    segments=_array(ANYTHING),
)
_GENERATED: Schema = _record(
    id=TEXT,
    object=TEXT,
    created=COUNT,
    model=TEXT,
    choices=_array(ANYTHING),
    usage=ANYTHING,
)


def _reference(schema: str) -> Schema:
    return {"$ref": f"#/components/schemas/{schema}"}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


SCHEMAS: dict[str, Schema] = {
    "Error": _record(error=TEXT, code=_choice(*(code.name for code in ErrorCode))),
    "OpenAIError": _record(
        error=_record(
            message=TEXT, type=TEXT, param={"type": ["string", "null"]}, code=TEXT
        )
    ),
    "Tensor": _tensor(0, data={"type": ["array", "null"], "items": {}}),
    "TensorMetadata": _tensor(-1),
    "InferRequest": _object(
        ("inputs",),
        id={"type": ["string", "null"], "maxLength": 256},
        parameters=PARAMETERS,
        inputs=_array(_reference("Tensor")),
        outputs={
            "type": ["array", "null"],
            "items": _object(("name",), name=_NAME, parameters=PARAMETERS),
        },
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        id=TEXT,
        model_name=TEXT,
        model_version=TEXT,
        parameters=PARAMETERS,
        outputs=_array(_reference("Tensor")),
    ),
    "ModelMetadata": _object(
        ("name", "versions", "platform", "inputs", "outputs"),
        name=TEXT,
        versions=_array(TEXT),
        platform=TEXT,
        inputs=_array(_reference("TensorMetadata")),
        outputs=_array(_reference("TensorMetadata")),
        parameters=PARAMETERS,
        card=_object(
            ("task", "examples"),
            **dict.fromkeys(
                ("task", "input", "advice", "preprocessing", "answer"), TEXT
            ),
            labels=COUNT,
            first_labels=_array(TEXT),
            examples=_map(TEXT),
            accepts=_array(_choice(*ACCEPTED)),
            parameters=_map(ANYTHING),
            features=_array(_FEATURE),
            keypoints=_array(TEXT),
            skeleton=_array(
                {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}
            ),
        ),
    ),
    "Statistics": _record(
        model_stats=_array(
            _object(
                (
                    "name",
                    "version",
                    "inference_count",
                    "execution_count",
                    "inference_stats",
                ),
                name=TEXT,
                version=TEXT,
                **dict.fromkeys(
                    ("last_inference", "inference_count", "execution_count"), COUNT
                ),
                inference_stats=_map(_record(count=COUNT, ns=COUNT)),
            )
        ),
    ),
    "Prediction": _object(
        ("model", "version", "task", "predictions", "timing_ms"),
        **dict.fromkeys(("model", "version", "task"), TEXT),
        predictions=_array(ANYTHING),
        timing_ms=_map({"type": "number", "minimum": 0}),
        assumed=_array(TEXT),
    ),
}

_BINARY: Schema = {"type": "string", "format": "binary"}

# Hints alone: the bytes decide. Generators of clients know nothing to do with ``*/*``.
_RAW_KINDS = (
    "application/octet-stream",
    "image/*",
    "audio/*",
    "text/*",
    "application/json",
)

REQUEST_BODIES: dict[str, Schema] = {
    "infer": {
        "required": True,
        "description": "JSON, or with the header Inference-Header-Content-Length JSON followed by raw tensors.",
        "content": _json(_reference("InferRequest"))
        | {"application/octet-stream": {"schema": _BINARY}},
    },
    "raw": {
        "required": True,
        "description": "The raw input: a picture, a JSON document, a .npy file or what else the model's task takes. "
        "Its first bytes tell which; bytes without a header need the parameter format.",
        "content": {
            **{kind: {"schema": _BINARY} for kind in _RAW_KINDS},
            "multipart/form-data": {"schema": _object(("data",), data=_BINARY)},
        },
    },
    "sound_form": {
        "required": True,
        "description": "A form in the format of OpenAI's clients.",
        "content": {
            "multipart/form-data": {
                "schema": _object(
                    ("file", "model"),
                    file=_BINARY,
                    model=TEXT,
                    language=TEXT,
                    prompt=TEXT,
                    temperature=TEXT,
                    response_format=_choice(
                        "json", "text", "srt", "verbose_json", "vtt"
                    ),
                    stream=_choice("true", "false"),
                )
            }
        },
    },
    **{
        name: {"required": required, "content": _json(schema)}
        for name, required, schema in (
            ("index", False, _object(ready=FLAG)),
            ("load", False, _object(parameters=PARAMETERS)),
            ("settings", False, ANYTHING),
            ("nothing", False, {"type": "object", "maxProperties": 0}),
            ("v1_predict", True, _object(signature_name=TEXT, instances={}, inputs={})),
            (
                "rerank",
                True,
                _object(
                    ("model", "query", "documents"),
                    model=TEXT,
                    query=TEXT,
                    documents=_array({"anyOf": [TEXT, _object(("text",), text=TEXT)]})
                    | {"minItems": 1},
                    top_n={"type": "integer", "minimum": 1},
                    return_documents=FLAG,
                ),
            ),
            ("chat_completion", True, _object(("model", "messages"), **_GENERATION)),
            (
                "embeddings",
                True,
                _object(
                    ("model", "input"),
                    model=TEXT,
                    input={"anyOf": [TEXT, _array(TEXT)]},
                    encoding_format=_choice("float", "base64"),
                ),
            ),
            ("generate", True, _object(("text_input",), text_input=TEXT)),
            ("completion", True, _object(("model", "prompt"), **_GENERATION)),
            (
                "response",
                True,
                _object(
                    ("model", "input"),
                    model=TEXT,
                    input={"anyOf": [TEXT, _array(ANYTHING)]},
                    instructions=TEXT,
                    stream=FLAG,
                    max_output_tokens=COUNT,
                ),
            ),
            ("web_session", True, _record(ticket=TEXT)),
            ("pairing_begin", True, _record(public=_hexadecimal(256))),
            (
                "pairing_finish",
                True,
                _record(exchange=_hexadecimal(16), proof=_hexadecimal(32)),
            ),
        )
    },
}

ANSWERS: dict[str, Schema] = {
    "health": _object(("live",), live=FLAG, ready=FLAG),
    "server_metadata": _object(
        ("name", "version", "extensions"),
        name=TEXT,
        version=TEXT,
        extensions=_array(TEXT),
        low_power=TEXT,
    ),
    "model_list": _record(models=_array(TEXT)),
    "openai_models": _record(object=TEXT, data=_array(ANYTHING), models=_array(TEXT)),
    "model_metadata": _reference("ModelMetadata"),
    "model_ready": _record(name=TEXT, ready=FLAG),
    "model_config": _object(
        ("name", "platform", "input", "output"), name=TEXT, platform=TEXT
    ),
    "model_interface": _object(
        ("name", "version", "fingerprint", "task", "inputs", "outputs", "calls"),
        **dict.fromkeys(("name", "version", "fingerprint", "task"), TEXT),
        inputs=_array(_reference("TensorMetadata")),
        outputs=_array(_reference("TensorMetadata")),
        calls=_array(ANYTHING),
        labels=_array(TEXT),
    ),
    "statistics": _reference("Statistics"),
    "infer": _reference("InferResponse"),
    "index": _array(
        _object(
            ("name", "version", "state", "reason"),
            **dict.fromkeys(
                ("name", "version", "state", "reason", "task", "sha256", "worker"), TEXT
            ),
            **dict.fromkeys(("default", "loaded"), FLAG),
            file_bytes=COUNT,
        )
    ),
    "load": _record(name=TEXT, load=FLAG),
    "unload": _record(name=TEXT, unload=FLAG),
    "regions": _array(ANYTHING),
    "unregistered": _object(),
    "not_offered": ANYTHING,
    "alive": _record(status=TEXT),
    "alive_or_page": _record(status=TEXT),
    "web_ticket": _record(ticket=TEXT, expires_in=COUNT, url=TEXT),
    "web_session": _record(session=TEXT),
    "model_status": _record(name=TEXT, ready=FLAG, model_version_status=_array({})),
    "signature_metadata": _object(("model_spec", "metadata")),
    "v1_predict": _object(predictions=_array({}), outputs={}),
    "prediction": _reference("Prediction"),
    "rerank": _object(
        ("model", "object", "results", "usage"),
        model=TEXT,
        object=TEXT,
        results=_array(
            _object(
                ("index", "relevance_score"),
                index=COUNT,
                relevance_score={"type": "number"},
                document=_object(("text",), text=TEXT),
            )
        ),
        usage=_record(prompt_tokens=COUNT, total_tokens=COUNT),
    ),
    "chat_completion": _GENERATED,
    "completion": _GENERATED,
    "response": _record(
        id=TEXT,
        object=TEXT,
        created_at=COUNT,
        model=TEXT,
        status=_choice("completed", "incomplete"),
        output=_array(ANYTHING),
        usage=ANYTHING,
    ),
    "embeddings": _record(
        object=TEXT, data=_array(ANYTHING), model=TEXT, usage=ANYTHING
    ),
    "transcription": _TRANSCRIPT,
    "translation": _TRANSCRIPT,
    "generated": _record(model_name=TEXT, model_version=TEXT, text_output=TEXT),
    "generated_stream": ANYTHING,
    "pairing_state": _record(**_PAIRING),
    "pairing_closed": _record(**_PAIRING),
    "pairing_code": _record(
        code={"type": "string", "pattern": "^[0-9]{10}$"}, **_PAIRING
    ),
    "pairing_begun": _record(
        exchange=_hexadecimal(16), salt=_hexadecimal(16), public=_hexadecimal(256)
    ),
    "pairing_done": _record(proof=_hexadecimal(32), token=TEXT),
    "metrics": TEXT,
    "sample": {},
    "openapi": ANYTHING,
}
_OTHER_TYPES: dict[str, dict[str, Schema]] = {
    "infer": {"application/octet-stream": _BINARY},
    "prediction": {"image/png": _BINARY, "image/jpeg": _BINARY},
    "sample": {
        "image/png": _BINARY,
        "image/jpeg": _BINARY,
        "image/webp": _BINARY,
        "audio/wav": _BINARY,
        "text/plain": TEXT,
        "text/csv": TEXT,
    },
    "transcription": {"text/plain": TEXT, "text/event-stream": TEXT},
    "translation": {"text/plain": TEXT, "text/event-stream": TEXT},
    "alive_or_page": {
        "text/html": TEXT
        | {"description": "The page if Accept names text/html; HTTP only."}
    },
}
"""Types that an answer may have beside JSON."""

_WAITING: tuple[tuple[str, Schema, str], ...] = (
    (
        "timeout_ms",
        {"type": "number", "minimum": 0, "maximum": 86_400_000},
        "Longest wait in the queue.",
    ),
    (
        "priority",
        {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
        "1 is the most urgent; 0, the default, counts as 5.",
    ),
    (
        "stream",
        {"type": "string", "maxLength": 128},
        "A newer request of the same stream replaces one that waits.",
    ),
)
_QUERY: dict[str, Sequence[tuple[str, Schema, str]]] = {
    "infer": _WAITING,
    "v1_predict": _WAITING,
    "rerank": _WAITING,
    "chat_completion": _WAITING,
    "completion": _WAITING,
    "response": _WAITING,
    "embeddings": _WAITING,
    "transcription": _WAITING,
    "translation": _WAITING,
    "generated": _WAITING,
    "generated_stream": _WAITING,
    "prediction": (
        *(
            (parameter.name, parameter.schema(), parameter.text)
            for parameter in parameters.PARAMETERS
        ),
        ("version", TEXT, "The model's version; by default its default version."),
        *_WAITING,
        (
            "sequence_id",
            {"type": "string", "maxLength": 256},
            "The sequence of this step.",
        ),
        ("sequence_start", FLAG, "Whether this is the first step."),
        ("sequence_end", FLAG, "Whether this is the last step."),
    ),
    "pairing_state": (
        (
            "wait_ms",
            {"type": "number", "minimum": 0, "maximum": 2_000},
            "Wait until pairing is no longer open.",
        ),
    ),
}


def describe_routes(
    routes: Sequence[Route], port: int = HTTP_PORT, *, auth: bool = True
) -> ApiResponse:
    """Describe the routes; ``auth`` adds the token."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route)
    password = {
        "type": "http",
        "scheme": "basic",
        "description": "The token as the password.",
    }
    return json_response(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Pocketserve",
                "version": __version__,
                "description": "Machine-learning models served on a phone.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": f"http://{LOOPBACK}:{port}"}],
            "paths": paths,
            "components": {
                "schemas": SCHEMAS,
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "password": password,
                },
            },
            "security": [{"token": []}, {"password": []}] if auth else [],
        }
    )


def _operation(route: Route) -> dict[str, Any]:
    summary = (load_handler(route.handler_name).__doc__ or "").strip()
    operation: dict[str, Any] = {
        "operationId": f"{route.group}_{route.name}_{route.method.lower()}",
        "tags": [route.group],
        "summary": summary.splitlines()[0],
        "responses": _responses(route),
    }
    parameters = _parameters(route)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = REQUEST_BODIES[route.body]
    if route.open:
        operation["security"] = []
    return operation


def _responses(route: Route) -> dict[str, Any]:
    schema = ANSWERS[route.answer]
    content = _json(schema)
    if route.answer == "metrics":
        content = {"text/plain": {"schema": schema}}
    for content_type, other in _OTHER_TYPES.get(route.answer, {}).items():
        content[content_type] = {"schema": other}
    responses: dict[str, Any] = {}
    if route.answer != "not_offered":
        responses["200"] = {"description": "Done.", "content": content}
    error = _reference("Error")
    if route.group == "openai":
        # A wrong method or a broken request gets our own form.
        error = {"anyOf": [_reference("OpenAIError"), error]}
    responses["default"] = {
        "description": "The error message and its stable code.",
        "content": _json(error),
    }
    return responses


def _parameters(route: Route) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    for name in re.findall(r"{(\w+)}", route.pattern):
        parameters.append(
            {"name": name, "in": "path", "required": True, "schema": TEXT}
        )
    for name, kind, text in _QUERY.get(route.answer, ()):
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": False,
                "schema": kind,
                "description": text,
            }
        )
    return parameters
