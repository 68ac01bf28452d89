"""``POST /predictions/NAME``: raw bytes in, a labelled answer out."""

from __future__ import annotations

from typing import Any

from pocketserve.api.messages import (
    ApiRequest,
    ApiResponse,
    json_response,
    query_number,
    refuse_unknown_query,
)
from pocketserve.engine.statistics import Timing
from pocketserve.service import Service
from pocketserve.tasks.base import AnswerOptions
from pocketserve_wire import ApiError, ErrorCode

MAX_TOP_K = 10_000


def predict(service: Service, request: ApiRequest) -> ApiResponse:
    """Answer a picture, a JSON document or a ``.npy`` file; what it is, is told from its first bytes."""
    return json_response(answer(service, request))


def answer(service: Service, request: ApiRequest) -> dict[str, Any]:
    """The answer's content, before it is encoded.

    Raises:
        ApiError: for every fault of the request, the model or the server.
    """
    refuse_unknown_query(request, "top_k", "threshold", "version", "timeout_ms")
    top_k = query_number(request, "top_k", 1, MAX_TOP_K, default=5)
    if top_k != int(top_k):
        raise ApiError(ErrorCode.INVALID_PARAMETER, "query parameter top_k must be a whole number")
    options = AnswerOptions(
        top_k=int(top_k),
        threshold=query_number(request, "threshold", float("-inf"), float("inf"), float("-inf")),
    )
    timeout_us = int(1000 * query_number(request, "timeout_ms", 0, 86_400_000, default=0))
    version = request.query.get("version")
    prediction = service.predict(request.path["model"], version, request.body, options, timeout_us)
    return {
        "model": prediction.model,
        "version": prediction.version,
        "task": prediction.task,
        "predictions": prediction.predictions,
        "timing_ms": timing_ms(prediction.timing),
    }


def timing_ms(timing: Timing) -> dict[str, float]:
    """The phases in milliseconds, to a microsecond."""
    phases = {
        "queue": timing.queue_ns,
        "pre": timing.input_ns,
        "infer": timing.infer_ns,
        "post": timing.output_ns,
    }
    return {name: round(ns / 1e6, 3) for name, ns in phases.items()}
