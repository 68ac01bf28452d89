"""Raw input over the Open Inference Protocol.

``"parameters": {"task": true}`` and one input of BYTES elements.

So clients of that protocol get what ``/predictions`` gives: the answer comes as a BYTES tensor that holds its JSON, or
the picture where ``annotate`` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pocketserve.api.messages import SEQUENCE_QUERY
from pocketserve.api.predictions import encoded_document
from pocketserve.inference.payload import FormPart, Prediction, RawPayload
from pocketserve.tasks import parameters
from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import InferRequest, InferResponse
from pocketserve_wire.oip_fields import bad_parameter, bad_request

OUTPUT = "answer"
BASE64 = "base64"
OWN = ("task", "content_type", "timeout", "priority", "stream", *SEQUENCE_QUERY)


def payload_of(
    request: InferRequest,
) -> tuple[RawPayload, Callable[[Prediction], InferResponse]]:
    """Return a request's raw input, and its response encoder."""
    values = dict(request.parameters)
    _refuse_unknown(values)
    content_type = values.get("content_type", "")
    if not isinstance(content_type, str):
        raise bad_parameter("parameters.content_type", "must be a text")
    is_base64 = content_type == BASE64  # of all elements, as MLServer has it
    if is_base64:
        content_type = ""
    hints, options = parameters.hints_and_options(values, content_type)
    for output in request.outputs:
        if output.name != OUTPUT or output.classification:
            raise bad_request(
                f"with parameters.task the only output is {OUTPUT!r}, "
                "without classification"
            )
    elements = _elements(request, is_base64)
    respond = partial(_respond, request.id)
    if len(elements) == 1:
        return RawPayload(elements[0], options, hints, values), respond
    parts = [FormPart("", element, content_type) for element in elements]
    return RawPayload(memoryview(b""), options, hints, values, parts), respond


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    names = (*OWN, *parameters.NAMES)
    for name in values:
        if name not in names:
            raise bad_parameter(
                f"unknown parameter {name!r:.64};", f"known are {', '.join(names)}"
            )


def _respond(request_id: str, prediction: Prediction) -> InferResponse:
    content = prediction.picture or encoded_document(prediction)
    return InferResponse(
        prediction.model,
        prediction.version,
        [Tensor(OUTPUT, "BYTES", (1,), [content])],
        id=request_id,
    )


def _elements(request: InferRequest, is_base64: bool) -> list[memoryview]:
    """Return the raw inputs, decoded from base64 if marked."""
    tensors = request.inputs
    if len(tensors) != 1 or tensors[0].datatype != "BYTES":
        raise bad_request(
            "with parameters.task there must be one input of datatype BYTES"
        )
    tensor, data = tensors[0], tensors[0].data
    assert not isinstance(data, memoryview)  # BYTES are a list
    # late: few requests have files
    from pocketserve.tasks.encoded import (
        MAX_INPUTS,
        decode_file,
    )

    if not 0 < len(data) <= MAX_INPUTS:
        fault = f"the input holds 1 to {MAX_INPUTS} elements, the raw bytes; it has {len(data)}"
        raise ApiError(ErrorCode.INVALID_TENSOR, f"with parameters.task {fault}")
    if not is_base64 and tensor.parameters.get("content_type") != BASE64:
        return [memoryview(element) for element in data]
    location = f"input {tensor.name!r}"
    return [
        memoryview(decode_file(bytes(element).decode("latin-1"), location))
        for element in data
    ]
