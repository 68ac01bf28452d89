"""``POST /predictions/NAME``: raw bytes in, a labelled answer out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pocketserve.api.messages import (
    SEQUENCE_QUERY,
    WAITING_QUERY,
    ApiRequest,
    ApiResponse,
    json_response,
    refuse_unknown_query,
    sequence_parameters,
    waiting_parameters,
)
from pocketserve.inference.blocking import submit_and_wait
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import FormPart, Prediction, RawPayload
from pocketserve.messages import LOADS_ANEW, SERVES_ON
from pocketserve.repository.manifest import FILE_NAME
from pocketserve.service import Service
from pocketserve.tasks import parameters
from pocketserve.tasks.base import AdvisedError
from pocketserve_wire import ApiError, ErrorCode, strict_json

PNG, JPEG = "image/png", "image/jpeg"
MULTIPART = "multipart/"
REQUEST_FIELDS = ("version", *WAITING_QUERY, *SEQUENCE_QUERY)
QUERY_NAMES = (*parameters.NAMES, *REQUEST_FIELDS)
MAX_FIELD_BYTES = (
    1024  # of a form's field that is a parameter; longer ones are cut and then refused
)


def predict(service: Service, request: ApiRequest) -> InferenceCall:
    """Answer a picture, a sound, a JSON document, a ``.npy`` file or other raw input."""
    return call_of(service, request, _respond)


def ask(service: Service, request: ApiRequest) -> Prediction:
    """Answer raw input on this thread, for commands and tests.

    Raises:
        ApiError: for every fault of the request, the model or the server.
    """
    prediction: Prediction = submit_and_wait(service.submit, call_of(service, request))
    return prediction


def call_of(
    service: Service,
    request: ApiRequest,
    respond: Callable[[Prediction], ApiResponse] | None = None,
) -> InferenceCall:
    """Return the call of a request.

    Raises:
        ApiError: for every fault of the request's form.
    """
    payload = _read_payload(request)
    query = request.query
    version = _version(request) if query else request.path.get("version")
    waiting = waiting_parameters(request) if query else {}
    options = service.request_options(
        waiting, request.deadline, request.cancellation, request.received, request.owner
    )
    return InferenceCall(
        request.path["model"],
        version,
        payload,
        options,
        request.execute,
        respond,
        partial(_explain, service, request),
        request.keeps_thread,
    )


def _read_payload(request: ApiRequest) -> RawPayload:
    """Return the raw input, and move a form's parameters into the query."""
    body, content_type = request.body, request.content_type
    parts: Sequence[FormPart] = ()
    if content_type[: len(MULTIPART)].lower() == MULTIPART:
        body, content_type = memoryview(b""), ""
        parts = _read_form(request)
    query = request.query
    if query:
        refuse_unknown_query(request, *QUERY_NAMES)
    hints, options = parameters.hints_and_options(query, content_type)
    sequence = sequence_parameters(request) if query else {}
    return RawPayload(body, options, hints, sequence, parts)


def _read_form(request: ApiRequest) -> list[FormPart]:
    """Move a form's waiting parameters to the query; return the rest."""
    from pocketserve.inference.multipart import read_form  # late: few send forms

    query = dict(request.query)
    parts: list[FormPart] = []
    for part in read_form(request.body, request.content_type):
        if part.is_file or part.name not in REQUEST_FIELDS:
            parts.append(part)
            continue
        if part.name in query:
            raise ApiError(
                ErrorCode.INVALID_PARAMETER, f"parameter {part.name} is given twice"
            )
        query[part.name] = bytes(part.content[:MAX_FIELD_BYTES]).decode(
            "utf-8", "replace"
        )
    if not parts:
        raise ApiError(
            ErrorCode.INVALID_INPUT, "the form has no file and no field with input"
        )
    request.query = query
    return parts


def _respond(prediction: Prediction) -> ApiResponse:
    if prediction.picture is not None:
        kind = JPEG if prediction.picture.startswith(b"\xff\xd8") else PNG
        return ApiResponse(content_type=kind, chunks=[prediction.picture])
    return ApiResponse(chunks=[encoded_document(prediction)])


def _explain(service: Service, request: ApiRequest, error: ApiError) -> ApiError:
    """Add the likely cause to an error, such as an empty body.

    Advice on a model's settings gives way to the fault of settings that were changed already.
    """
    if isinstance(error, AdvisedError) and (reason := _pending_fault(service, request)):
        return ApiError(error.code, f"{error.fault}; {reason}")
    if error.code not in (ErrorCode.INVALID_INPUT, ErrorCode.MALFORMED_JSON):
        return error
    return ApiError(error.code, error.message + _hint(request, error.message))


def _pending_fault(service: Service, request: ApiRequest) -> str:
    """Return why a model's changed files aren't served yet, if so."""
    try:
        reason = service.status(request.path["model"], _version(request)).reason
    except ApiError:
        return ""
    if not reason.startswith(SERVES_ON):
        return ""
    fault = reason.removeprefix(SERVES_ON)
    if fault.startswith(LOADS_ANEW):
        return "its files changed and are being loaded: send the request again"
    _, separator, after = fault.partition(f"{FILE_NAME}: ")
    if separator:
        return f"{FILE_NAME} has a fault: {after}; the old one is still served"
    return f"its files changed and have a fault: {fault}; the old ones are still served"


def _version(request: ApiRequest) -> str | None:
    """Return the version in the path or in the query."""
    in_path, in_query = request.path.get("version"), request.query.get("version")
    if in_path is not None and in_query not in (None, in_path):
        text = f"the path names version {in_path!r:.80}, the query {in_query!r:.80}"
        raise ApiError(ErrorCode.INVALID_PARAMETER, text)
    return in_query if in_path is None else in_path


def ping(service: Service, request: ApiRequest) -> ApiResponse:
    """TorchServe's health check: the process answers."""
    return json_response({"status": "Healthy"})


def _hint(request: ApiRequest, message: str) -> str:
    if not len(request.body):
        return "" if "body is empty" in message else "; the body is empty"
    kind = request.content_type.partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded" and bytes(request.body[:1]) not in (
        b"[",
        b"{",
    ):
        return "; if it was curl -d @FILE, that leaves out line ends: send the file with curl -T FILE"
    return ""


def encoded_document(prediction: Prediction) -> bytes:
    """Return the answer as strict JSON: null for NaN and infinities."""
    return strict_json.dumps_finite(document(prediction))


def document(prediction: Prediction) -> dict[str, Any]:
    """Return the answer's content; times are in milliseconds."""
    timing = prediction.timing
    content = {
        "model": prediction.model,
        "version": prediction.version,
        "task": prediction.task,
        "predictions": prediction.predictions,
        **prediction.more,
    }
    if prediction.assumed:
        content["assumed"] = list(prediction.assumed)
    content["timing_ms"] = {
        "queue": round(timing.queue_ns / 1e6, 3),
        "pre": round(timing.input_ns / 1e6, 3),
        "infer": round(timing.infer_ns / 1e6, 3),
        "post": round(timing.output_ns / 1e6, 3),
    }
    return content
