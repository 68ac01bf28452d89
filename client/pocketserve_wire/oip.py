"""The Open Inference Protocol's inference messages: bytes <-> requests and responses, in both directions.

A body is a JSON object, followed by the raw bytes of those tensors that are sent as binary. The length of the JSON
part travels beside the body: in HTTP as ``Inference-Header-Content-Length``, on the socket as ``json_len``.

Sources: Open Inference Protocol v2 (REST), Triton's binary tensor data and classification extensions. Where
implementations differ, `docs/http.md` says which behaviour this codec follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import strict_json
from .datatypes import DATATYPES
from .errors import ApiError, ErrorCode
from .limits import MAX_ELEMENTS, TENSOR_ALIGNMENT
from .oip_fields import (
    BinaryReader,
    Parameters,
    bad_parameter,
    parse_id,
    parse_list,
    parse_name,
    parse_parameters,
    parse_tensor,
    parse_tensor_parameters,
    pop_flag,
    refuse_duplicates,
)
from .templates import (
    MAX_TEMPLATE_BYTES,
    BodyKey,
    TemplateCache,
    TensorPlace,
    body_key,
    header_key,
    is_plain,
    places_of,
    tensors_at,
)
from .tensor import Tensor, element_count, from_raw, invalid, to_json_values, to_raw


class RequestedOutput(NamedTuple):
    """An entry of a request's ``outputs``.

    Attributes:
        binary: send it as raw bytes rather than JSON values.
        classification: how many best classes to answer instead of the tensor; 0 sends the tensor.
    """

    name: str
    binary: bool = False
    classification: int = 0
    parameters: Mapping[str, Any] = {}


@dataclass(slots=True)
class InferRequest:
    """A decoded inference request.

    Attributes:
        outputs: empty means all of them.
        parameters: without ``binary_data_output``.
        binary_output: whether outputs that are not listed are sent as raw bytes.
        raw: the whole body, when it is one input's bytes with no JSON in front (header length 0).
        template: the template that it was read with, which requests share that differ in their tensors' bytes alone.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[RequestedOutput] = field(default_factory=list)
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    binary_output: bool = False
    raw: memoryview | None = None
    template: RequestTemplate | None = field(default=None, compare=False, repr=False)


class InferResponse(NamedTuple):
    """An inference response: the model that answered and its output tensors."""

    model_name: str
    model_version: str
    outputs: list[Tensor]
    id: str = ""
    parameters: Mapping[str, Any] = {}


class RequestTemplate:
    """A header that was read and checked once, for every body with the same header and length.

    Attributes:
        id, parameters: as in :class:`InferRequest`; shared, not to be changed.
        inputs: where each lies in the body.
        all_raw: plain tensors are asked for, all as raw bytes.
    """

    __slots__ = ("_binary_output", "_outputs", "all_raw", "id", "inputs", "parameters")

    def __init__(self, request: InferRequest, start: int) -> None:
        self.id = request.id
        self.parameters = request.parameters.copy()
        self._binary_output = request.binary_output
        self._outputs = request.outputs.copy()
        plain = all(
            output.binary and not output.classification for output in request.outputs
        )
        self.all_raw = plain if request.outputs else request.binary_output
        self.inputs = places_of(request.inputs, start)

    def read(self, view: memoryview) -> InferRequest:
        """Return the request of such a body."""
        inputs, outputs, parameters = (
            tensors_at(self.inputs, view),
            self._outputs.copy(),
            self.parameters.copy(),
        )
        return InferRequest(
            inputs, outputs, self.id, parameters, self._binary_output, None, self
        )


class ResponseTemplate(NamedTuple):
    """The same for responses: the header without its outputs, and where those lie in the body."""

    header: InferResponse
    outputs: list[TensorPlace]

    def read(self, view: memoryview) -> InferResponse:
        """Return the response of such a body."""
        parameters = dict(self.header.parameters)
        return self.header._replace(
            outputs=tensors_at(self.outputs, view), parameters=parameters
        )


_requests: TemplateCache[BodyKey, RequestTemplate] = TemplateCache()
_responses: TemplateCache[BodyKey, ResponseTemplate] = TemplateCache()
_headers: TemplateCache[tuple[Any, ...], bytes] = TemplateCache()


class EncodedBody(NamedTuple):
    """A body ready to be sent.

    Attributes:
        chunks: the JSON part and, behind it, each binary tensor's own memory, in order.
        json_length: bytes of the JSON part when binary tensors follow, else None.
    """

    chunks: list[bytes | memoryview]
    json_length: int | None

    @property
    def length(self) -> int:
        """Bytes in all chunks together."""
        return sum(map(len, self.chunks))


def decode_infer_request(
    body: bytes | memoryview, json_length: int | None
) -> InferRequest:
    """Decode an inference request.

    Args:
        json_length: bytes of JSON at the body's start; None when all is JSON; 0 when the body is the single input's
            raw bytes.

    Raises:
        ApiError: MALFORMED_JSON, INVALID_HEADER, INVALID_REQUEST, INVALID_PARAMETER or INVALID_TENSOR.
    """
    view = memoryview(body)
    if json_length == 0:
        return InferRequest(raw=view, binary_output=True)
    key = None if json_length is None else body_key(view, json_length)
    if key is None:
        return _decode(view, json_length)
    template = _requests.get(key)
    if template is not None:
        return template.read(view)
    request = _decode(view, json_length)
    length = len(key[0])
    if is_plain(request.inputs, len(view) - length):
        _requests.keep(key, RequestTemplate(request, length))
    return request


def find_template(body: memoryview, json_length: int | None) -> RequestTemplate | None:
    """Return the template of a body whose JSON part was read before; None where it has to be read."""
    # As body_key(), without the call: a server does this for every request.
    if json_length is None or not 0 < json_length <= MAX_TEMPLATE_BYTES:
        return None
    return _requests.get((bytes(body[:json_length]), len(body)))


def _decode(view: memoryview, json_length: int | None) -> InferRequest:
    header, reader = _split(view, json_length)
    parameters = parse_parameters(header.get("parameters"), "parameters")
    request = InferRequest(
        id=parse_id(header.get("id")),
        binary_output=pop_flag(
            parameters, "binary_data_output", "parameters", default=False
        ),
        parameters=parameters,
    )
    request.inputs = [
        parse_tensor(item, f"inputs[{index}]", reader)
        for index, item in enumerate(parse_list(header, "inputs", required=True))
    ]
    reader.expect_end()
    refuse_duplicates([tensor.name for tensor in request.inputs], "inputs")
    request.outputs = [
        _decode_requested_output(item, f"outputs[{index}]")
        for index, item in enumerate(parse_list(header, "outputs", required=False))
    ]
    refuse_duplicates([output.name for output in request.outputs], "outputs")
    return request


def _split(
    view: memoryview, json_length: int | None
) -> tuple[dict[str, Any], BinaryReader]:
    end = len(view) if json_length is None else json_length
    return strict_json.loads_object(view[:end]), BinaryReader(view[end:])


def encode_infer_request(request: InferRequest, *, binary: bool = True) -> EncodedBody:
    """Encode an inference request, with the inputs as raw bytes (or as JSON where ``binary`` is false)."""
    key = _request_key(request) if binary else None
    body = _with_known_header(key, request.inputs)
    if body is not None:
        return body
    parameters = dict(request.parameters)
    if request.binary_output:
        parameters["binary_data_output"] = True
    header: dict[str, Any] = {"id": request.id} if request.id else {}
    if parameters:
        header["parameters"] = parameters
    if request.outputs:
        header["outputs"] = [
            _encode_requested_output(output) for output in request.outputs
        ]
    return _keep_header(
        key,
        _encode_tensors(
            header, "inputs", request.inputs, [binary] * len(request.inputs)
        ),
    )


def encode_infer_response(
    response: InferResponse, binary: Mapping[str, bool] | bool
) -> EncodedBody:
    """Encode an inference response; ``binary`` tells by output name, or for all, which are sent as raw bytes.

    Raises:
        ApiError: INVALID_REQUEST when an output has no JSON form and was not asked for as binary.
    """
    outputs = response.outputs
    flags = [
        binary if isinstance(binary, bool) else binary.get(tensor.name, False)
        for tensor in outputs
    ]
    key = _response_key(response) if flags and False not in flags else None
    body = _with_known_header(key, outputs)
    if body is not None:
        return body
    header: dict[str, Any] = {"id": response.id} if response.id else {}
    header |= {
        "model_name": response.model_name,
        "model_version": response.model_version,
    }
    if response.parameters:
        header["parameters"] = response.parameters
    return _keep_header(key, _encode_tensors(header, "outputs", outputs, flags))


def _request_key(request: InferRequest) -> tuple[Any, ...] | None:
    """Return what the JSON part of a request with raw inputs depends on; None where it changes each time."""
    if (
        request.id
        or request.parameters
        or any(output.parameters for output in request.outputs)
    ):
        return None
    tensors = header_key(request.inputs)
    if not tensors:
        return None
    outputs = tuple(
        (output.name, output.binary, output.classification)
        for output in request.outputs
    )
    return "inputs", request.binary_output, outputs, tensors


def _response_key(response: InferResponse) -> tuple[Any, ...] | None:
    """Return the same of a response."""
    if response.id or response.parameters:
        return None
    tensors = header_key(response.outputs)
    return (
        None
        if tensors is None
        else ("outputs", response.model_name, response.model_version, tensors)
    )


def _with_known_header(
    key: tuple[Any, ...] | None, tensors: list[Tensor]
) -> EncodedBody | None:
    text = None if key is None else _headers.get(key)
    if text is None:
        return None
    return EncodedBody([text, *(tensor.data for tensor in tensors)], len(text))  # type: ignore[list-item]  # all raw


def _keep_header(key: tuple[Any, ...] | None, body: EncodedBody) -> EncodedBody:
    if (
        key is not None
        and body.json_length is not None
        and body.json_length <= MAX_TEMPLATE_BYTES
    ):
        _headers.keep(key, bytes(body.chunks[0]))
    return body


def decode_infer_response(
    body: bytes | memoryview, json_length: int | None
) -> InferResponse:
    """Decode an inference response; binary outputs reference the body's memory.

    Raises:
        ApiError: when the body is not a valid response.
    """
    view = memoryview(body)
    key = body_key(view, json_length)
    if key is None:
        return _decode_response(view, json_length)
    template = _responses.get(key)
    if template is not None:
        return template.read(view)
    response = _decode_response(view, json_length)
    length = len(key[0])
    if not response.id and is_plain(response.outputs, len(view) - length):
        header = response._replace(outputs=[], parameters=dict(response.parameters))
        _responses.keep(
            key, ResponseTemplate(header, places_of(response.outputs, length))
        )
    return response


def _decode_response(view: memoryview, json_length: int | None) -> InferResponse:
    header, reader = _split(view, json_length)
    outputs = [
        parse_tensor(item, f"outputs[{index}]", reader)
        for index, item in enumerate(parse_list(header, "outputs", required=True))
    ]
    reader.expect_end()
    return InferResponse(
        model_name=str(header.get("model_name", "")),
        model_version=str(header.get("model_version") or ""),
        outputs=outputs,
        id=str(header.get("id") or ""),
        parameters=parse_parameters(header.get("parameters"), "parameters"),
    )


def parse_json_length(value: str | None, body_length: int) -> int | None:
    """Read an ``Inference-Header-Content-Length`` header's value; None when the header is absent.

    Raises:
        ApiError: INVALID_HEADER unless it is a plain decimal number from 0 to the body's length.
    """
    if value is None:
        return None
    text = value.strip()
    if (
        not (text.isascii() and text.isdigit())
        or len(text) > 19
        or int(text) > body_length
    ):
        fault = f"inference header size should be in range (0, {body_length}), got: {text[:40]!r}"
        raise ApiError(ErrorCode.INVALID_HEADER, fault)
    return int(text)


def raw_input(
    body: memoryview, name: str, datatype: str, shape: Sequence[int]
) -> Tensor:
    """Return the single input of a request without JSON, whose body is its raw bytes.

    Args:
        shape: the model's shape; at most one dimension may be -1, and its size follows from the body's.

    Raises:
        ApiError: INVALID_TENSOR.
    """
    location = f"input {name!r}"
    kind = DATATYPES[datatype]
    if kind.name == "BYTES":  # Triton: exactly one element, without a length in front
        return Tensor(name, datatype, (1,) * max(1, len(shape)), [bytes(body)])
    variable = [index for index, dim in enumerate(shape) if dim < 0]
    if len(variable) > 1:
        raise invalid(
            location,
            f"a raw body cannot tell the sizes of shape {list(shape)}; send a JSON header",
        )
    sizes = list(shape)
    if variable:
        step = kind.itemsize * element_count(dim for dim in shape if dim >= 0)
        if step == 0 or len(body) % step:
            raise invalid(
                location,
                f"a raw body must be a multiple of {step} bytes, got {len(body)}",
            )
        sizes[variable[0]] = len(body) // step
    return Tensor(
        name, datatype, tuple(sizes), from_raw(body, kind, tuple(sizes), location)
    )


def _decode_requested_output(item: Any, location: str) -> RequestedOutput:
    name = parse_name(item, location)
    parameters = parse_tensor_parameters(item, location)
    classification = parameters.pop("classification", 0)
    if type(classification) is not int or not 0 <= classification <= MAX_ELEMENTS:
        raise bad_parameter(
            f"{location}.parameters.classification", "must be an integer from 0"
        )
    return RequestedOutput(
        name=name,
        binary=pop_flag(
            parameters, "binary_data", f"{location}.parameters", default=False
        ),
        classification=classification,
        parameters=parameters,
    )


def _encode_requested_output(output: RequestedOutput) -> dict[str, Any]:
    parameters = {**output.parameters, "binary_data": output.binary}
    if output.classification:
        parameters["classification"] = output.classification
    return {"name": output.name, "parameters": parameters}


def _encode_tensors(
    header: dict[str, Any], key: str, tensors: list[Tensor], binary: list[bool]
) -> EncodedBody:
    items: list[dict[str, Any]] = []
    raw: list[bytes | memoryview] = []
    for tensor, as_binary in zip(tensors, binary, strict=True):
        item: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        parameters = dict(tensor.parameters)
        if as_binary:
            data = to_raw(tensor)
            parameters["binary_data_size"] = data.nbytes
            if data.nbytes:
                raw.append(data)
        else:
            item["data"] = to_json_values(tensor)
        if parameters:
            item["parameters"] = parameters
        items.append(item)
    header[key] = items
    text = strict_json.dumps(header)
    # Without a single raw byte the body is plain JSON and no length is announced, as Triton does.
    if not raw:
        return EncodedBody([text], None)
    text += b" " * (-len(text) % TENSOR_ALIGNMENT)
    return EncodedBody([text, *raw], len(text))
