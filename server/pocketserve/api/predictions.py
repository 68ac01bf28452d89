"""``POST /predictions/NAME``: raw bytes in, a labelled answer out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pocketserve.api.messages import (
    SEQUENCE_QUERY,
    WAITING_QUERY,
    ApiRequest,
    ApiResponse,
    inference_call,
    json_response,
    refuse_unknown_query,
    sequence_parameters,
    waiting_parameters,
)
from pocketserve.inference.blocking import submit_and_wait
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import Prediction, RawPayload
from pocketserve.service import Service
from pocketserve.tasks import parameters
from pocketserve_wire import ApiError, ErrorCode

PNG, JPEG = "image/png", "image/jpeg"
FORM = "multipart/form-data"


def predict(service: Service, request: ApiRequest) -> InferenceCall:
    """Answer raw input: a picture, a JSON document, a ``.npy`` file, or what else the model's task takes."""
    return call_of(service, request, _respond)


def ask(service: Service, request: ApiRequest) -> Prediction:
    """Answer raw input on this thread, as :func:`predict`, for commands and tests.

    Raises:
        ApiError: for every fault of the request, the model or the server.
    """
    prediction: Prediction = submit_and_wait(service.submit, call_of(service, request))
    return prediction


def call_of(
    service: Service, request: ApiRequest, respond: Callable[[Prediction], ApiResponse] | None = None
) -> InferenceCall:
    """Return the inference that a request of this interface asks for.

    Raises:
        ApiError: for every fault of the request's form.
    """
    refuse_unknown_query(request, *parameters.NAMES, "version", *WAITING_QUERY, *SEQUENCE_QUERY)
    body, content_type = request.body, request.content_type
    if content_type[: len(FORM)].lower() == FORM:
        from pocketserve.api.multipart import only_part  # late: few send forms

        body, content_type = only_part(body, content_type)
    hints, options = parameters.hints_and_options(request.query, content_type)
    payload, version = RawPayload(body, options, hints, sequence_parameters(request)), _version(request)
    explain = partial(_explain, request)
    return inference_call(
        service, request, payload, waiting_parameters(request), respond, version=version, explain=explain
    )


def _respond(prediction: Prediction) -> ApiResponse:
    if prediction.picture is not None:
        kind = JPEG if prediction.picture.startswith(b"\xff\xd8") else PNG
        return ApiResponse(content_type=kind, chunks=[prediction.picture])
    return json_response(document(prediction))


def _explain(request: ApiRequest, error: ApiError) -> ApiError:
    """Add what to do instead of sending nothing, or what curl -d makes of a file."""
    if error.code not in (ErrorCode.INVALID_INPUT, ErrorCode.MALFORMED_JSON):
        return error
    return ApiError(error.code, error.message + _hint(request, error.message))


def _version(request: ApiRequest) -> str | None:
    """Return the version in the path, as TorchServe has it, or in the query."""
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
    if kind == "application/x-www-form-urlencoded" and bytes(request.body[:1]) not in (b"[", b"{"):
        return "; if it was curl -d @FILE, that leaves out line ends: send the file with curl -T FILE"
    return ""


def document(prediction: Prediction) -> dict[str, Any]:
    """Return the answer's content, before it is encoded; times are in milliseconds."""
    timing = prediction.timing
    phases = {"queue": timing.queue_ns, "pre": timing.input_ns, "infer": timing.infer_ns, "post": timing.output_ns}
    return {
        "model": prediction.model,
        "version": prediction.version,
        "task": prediction.task,
        "predictions": prediction.predictions,
        **prediction.more,
        "timing_ms": {name: round(ns / 1e6, 3) for name, ns in phases.items()},
    }
