"""Raw input over the Open Inference Protocol: ``"parameters": {"task": true}`` and one BYTES element.

So clients of that protocol get what ``/predictions`` gives: the answer comes as a BYTES tensor that holds its JSON, or
the picture where ``annotate`` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pocketserve.api.messages import SEQUENCE_QUERY
from pocketserve.api.predictions import document
from pocketserve.inference.payload import Prediction, RawPayload
from pocketserve.tasks import parameters
from pocketserve_wire import ApiError, ErrorCode, Tensor, strict_json
from pocketserve_wire.oip import InferRequest, InferResponse
from pocketserve_wire.oip_fields import bad_parameter, bad_request

OUTPUT = "answer"
OWN = ("task", "content_type", "timeout", "priority", "stream", *SEQUENCE_QUERY)


def payload_of(request: InferRequest) -> tuple[RawPayload, Callable[[Prediction], InferResponse]]:
    """Return the raw input that a request holds, and what makes the protocol's answer of the task's."""
    values = dict(request.parameters)
    names = (*OWN, *parameters.NAMES)
    if unknown := [name for name in values if name not in names]:
        raise bad_parameter(f"unknown parameter {unknown[0]!r:.64};", f"known are {', '.join(names)}")
    content_type = values.get("content_type", "")
    if not isinstance(content_type, str):
        raise bad_parameter("parameters.content_type", "must be a text")
    hints, options = parameters.hints_and_options(values, content_type)
    if any(output.name != OUTPUT or output.classification for output in request.outputs):
        raise bad_request(f"with parameters.task the only output is {OUTPUT!r}, without classification")
    return RawPayload(_body(request), options, hints, values), partial(_respond, request.id)


def _respond(request_id: str, prediction: Prediction) -> InferResponse:
    content = prediction.picture or strict_json.dumps(document(prediction))
    return InferResponse(
        prediction.model, prediction.version, [Tensor(OUTPUT, "BYTES", (1,), [content])], id=request_id
    )


def _body(request: InferRequest) -> memoryview:
    tensors = request.inputs
    if len(tensors) != 1 or tensors[0].datatype != "BYTES" or isinstance(tensors[0].data, memoryview):
        raise bad_request("with parameters.task there must be one input of datatype BYTES")
    if len(tensors[0].data) != 1:
        fault = f"the input holds one element, the raw bytes; it has {len(tensors[0].data)}"
        raise ApiError(ErrorCode.INVALID_TENSOR, f"with parameters.task {fault}")
    return memoryview(tensors[0].data[0])
