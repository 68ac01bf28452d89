"""Raw input over the Open Inference Protocol: ``"parameters": {"task": true}`` and one BYTES element.

So clients of that protocol get what ``/predictions`` gives: the answer comes as a BYTES tensor that holds its JSON, or
the PNG file where ``annotate`` asks for it.
"""

from __future__ import annotations

from typing import Any

from pocketserve.api.predictions import document
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.service import Service
from pocketserve.tasks import parameters
from pocketserve_wire import ApiError, ErrorCode, Tensor, strict_json
from pocketserve_wire.oip import InferRequest, InferResponse

OUTPUT = "answer"
OWN = ("task", "content_type", "timeout", "priority", "stream")


def infer(
    service: Service, model: str, version: str | None, request: InferRequest, terms: RequestOptions
) -> InferResponse:
    """Answer one raw input.

    Raises:
        ApiError: for every fault of the request, the model or the server.
    """
    given = dict(request.parameters)
    names = (*OWN, *parameters.NAMES)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ApiError(
            ErrorCode.INVALID_PARAMETER, f"unknown parameter {unknown[0]!r:.64}; known are {', '.join(names)}"
        )
    hints, options = parameters.hints_and_options(given, _text(given, "content_type"))
    _check_outputs(request)
    prediction = service.predict(model, version, _body(request), options, terms, hints)
    content = prediction.picture or strict_json.dumps(document(prediction))
    answer = Tensor(OUTPUT, "BYTES", (1,), [content])
    return InferResponse(prediction.model, prediction.version, [answer], id=request.id)


def _body(request: InferRequest) -> memoryview:
    tensors = request.inputs
    if len(tensors) != 1 or tensors[0].datatype != "BYTES" or isinstance(tensors[0].data, memoryview):
        raise ApiError(ErrorCode.INVALID_REQUEST, "with parameters.task there must be one input of datatype BYTES")
    if len(tensors[0].data) != 1:
        raise ApiError(
            ErrorCode.INVALID_TENSOR,
            f"with parameters.task the input holds one element, the raw bytes; it has {len(tensors[0].data)}",
        )
    return memoryview(tensors[0].data[0])


def _check_outputs(request: InferRequest) -> None:
    for output in request.outputs:
        if output.name != OUTPUT or output.classification:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"with parameters.task the only output is {OUTPUT!r}, without classification"
            )


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str):
        raise ApiError(ErrorCode.INVALID_PARAMETER, f"parameters.{name} must be a text")
    return value
