"""Raw input over the Open Inference Protocol: ``"parameters": {"task": true}`` and one BYTES element.

So clients of that protocol get what ``/predictions`` gives: the answer comes as a BYTES tensor that holds its JSON, or
the PNG file where ``annotate`` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pocketserve.api.predictions import document
from pocketserve.inference.call import Prediction, RawPayload
from pocketserve.tasks import parameters
from pocketserve_wire import ApiError, ErrorCode, Tensor, strict_json
from pocketserve_wire.oip import InferRequest, InferResponse

OUTPUT = "answer"
OWN = ("task", "content_type", "timeout", "priority", "stream")


def payload_of(request: InferRequest) -> tuple[RawPayload, Callable[[Prediction], InferResponse]]:
    """Return the raw input that a request holds, and what makes the protocol's answer of the task's.

    Raises:
        ApiError: for every fault of the request.
    """
    values = dict(request.parameters)
    names = (*OWN, *parameters.NAMES)
    unknown = [name for name in values if name not in names]
    if unknown:
        raise ApiError(
            ErrorCode.INVALID_PARAMETER, f"unknown parameter {unknown[0]!r:.64}; known are {', '.join(names)}"
        )
    hints, options = parameters.hints_and_options(values, _text(values, "content_type"))
    _check_outputs(request)
    return RawPayload(_body(request), options, hints), partial(_respond, request.id)


def _respond(request_id: str, prediction: Prediction) -> InferResponse:
    content = prediction.picture or strict_json.dumps(document(prediction))
    return InferResponse(
        prediction.model, prediction.version, [Tensor(OUTPUT, "BYTES", (1,), [content])], id=request_id
    )


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


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name, "")
    if not isinstance(value, str):
        raise ApiError(ErrorCode.INVALID_PARAMETER, f"parameters.{name} must be a text")
    return value
