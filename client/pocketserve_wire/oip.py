"""Encode and decode the inference messages of the Open Inference Protocol.

A body is a JSON object, followed by the raw bytes of the binary tensors. The length of
the JSON part is sent separately: in HTTP as ``Inference-Header-Content-Length``, on the
socket as ``json_len``.

Sources: Open Inference Protocol v2 (REST), Triton's binary tensor data and
classification extensions. ``docs/http.md`` describes this codec's behaviour where
implementations differ.
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
        binary: send raw bytes rather than JSON values.
        classification: number of best classes to return; 0 returns the tensor.
    """

    name: str
    binary: bool = False
    classification: int = 0
    parameters: Mapping[str, Any] = {}


@dataclass(slots=True)
class InferRequest:
    """A decoded inference request.

    Attributes:
        outputs: empty means all outputs.
        parameters: without ``binary_data_output``.
        binary_output: whether unlisted outputs are sent as raw bytes.
        raw: the whole body, if it is one input's bytes without JSON (header length 0).
        template: its template; requests that differ only in tensor bytes share one.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[RequestedOutput] = field(default_factory=list)
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    binary_output: bool = False
    raw: memoryview | None = None
    template: RequestTemplate | None = field(default=None, compare=False, repr=False)


class InferResponse(NamedTuple):
    """An inference response: the model's name and version, and its output tensors."""

    model_name: str
    model_version: str
    outputs: list[Tensor]
    id: str = ""
    parameters: Mapping[str, Any] = {}


class RequestTemplate:
    """A parsed header, reused for every body with the same header and length.

    Attributes:
        id, parameters: as in :class:`InferRequest`; shared, so don't modify them.
        inputs: positions of the input tensors in the body.
        all_raw: all outputs are requested as plain tensors in raw bytes.
    """

    __slots__ = ("_binary_output", "_outputs", "all_raw", "id", "inputs", "parameters")

    def __init__(self, request: InferRequest, start: int) -> None:
        self.id = request.id
        self.parameters = request.parameters.copy()
        self._binary_output = request.binary_output
        self._outputs = request.outputs.copy()
        if request.outputs:
            self.all_raw = all(
                output.binary and not output.classification
                for output in request.outputs
            )
        else:
            self.all_raw = request.binary_output
        self.inputs = places_of(request.inputs, start)

    def read(self, view: memoryview) -> InferRequest:
        """Return the request of a body that has this header."""
        return InferRequest(
            inputs=tensors_at(self.inputs, view),
            outputs=self._outputs.copy(),
            id=self.id,
            parameters=self.parameters.copy(),
            binary_output=self._binary_output,
            template=self,
        )


class ResponseTemplate(NamedTuple):
    """A parsed response header without outputs, and the outputs' positions."""

    header: InferResponse
    outputs: list[TensorPlace]

    def read(self, view: memoryview) -> InferResponse:
        """Return the response of a body that has this header."""
        parameters = dict(self.header.parameters)
        return self.header._replace(
            outputs=tensors_at(self.outputs, view), parameters=parameters
        )


_requests: TemplateCache[BodyKey, RequestTemplate] = TemplateCache()
_responses: TemplateCache[BodyKey, ResponseTemplate] = TemplateCache()
_headers: TemplateCache[tuple[Any, ...], bytes] = TemplateCache()


class EncodedBody(NamedTuple):
    """An encoded body.

    Attributes:
        chunks: the JSON part, then the memory of each binary tensor, in order.
        json_length: bytes of the JSON part if binary tensors follow, else None.
    """

    chunks: list[bytes | memoryview]
    json_length: int | None

    @property
    def length(self) -> int:
        """Return the number of bytes in all chunks."""
        return sum(map(len, self.chunks))


def decode_infer_request(
    body: bytes | memoryview, json_length: int | None
) -> InferRequest:
    """Decode an inference request.

    Args:
        json_length: bytes of JSON at the body's start; None if the body is JSON only; 0
            if it is the single input's raw bytes.

    Raises:
        ApiError: MALFORMED_JSON, INVALID_HEADER, INVALID_REQUEST, INVALID_PARAMETER or
            INVALID_TENSOR.
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
    """Return the cached template of a body, or None."""
    # body_key() without the call: a server does this for every request.
    if json_length is None or not 0 < json_length <= MAX_TEMPLATE_BYTES:
        return None
    key = bytes(body[:json_length]), len(body)
    return _requests.get(key)


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
    request.inputs = _parse_tensors(header, "inputs", reader)
    refuse_duplicates([tensor.name for tensor in request.inputs], "inputs")
    request.outputs = _decode_requested_outputs(header)
    return request


def _decode_requested_outputs(header: dict[str, Any]) -> list[RequestedOutput]:
    outputs = []
    for index, item in enumerate(parse_list(header, "outputs", required=False)):
        outputs.append(_decode_requested_output(item, f"outputs[{index}]"))
    refuse_duplicates([output.name for output in outputs], "outputs")
    return outputs


def _parse_tensors(
    header: dict[str, Any], key: str, reader: BinaryReader
) -> list[Tensor]:
    """Parse a list of tensors, which must use all bytes after the JSON."""
    tensors = []
    for index, item in enumerate(parse_list(header, key, required=True)):
        tensors.append(parse_tensor(item, f"{key}[{index}]", reader))
    reader.expect_end()
    return tensors


def _split(
    view: memoryview, json_length: int | None
) -> tuple[dict[str, Any], BinaryReader]:
    end = len(view) if json_length is None else json_length
    return strict_json.loads_object(view[:end]), BinaryReader(view[end:])


def encode_infer_request(request: InferRequest, *, binary: bool = True) -> EncodedBody:
    """Encode an inference request.

    Args:
        binary: send the inputs as raw bytes rather than JSON values.
    """
    key = _request_key(request) if binary else None
    body = _with_cached_header(key, request.inputs)
    if body is not None:
        return body
    parameters = dict(request.parameters)
    if request.binary_output:
        parameters["binary_data_output"] = True
    header: dict[str, Any] = {"id": request.id} if request.id else {}
    if parameters:
        header["parameters"] = parameters
    if request.outputs:
        header["outputs"] = list(map(_encode_requested_output, request.outputs))
    flags = [binary] * len(request.inputs)
    encoded = _encode_tensors(header, "inputs", request.inputs, flags)
    return _cache_header(key, encoded)


def encode_infer_response(
    response: InferResponse, binary: Mapping[str, bool] | bool
) -> EncodedBody:
    """Encode an inference response.

    Args:
        binary: whether to send outputs as raw bytes, by output name or for all.

    Raises:
        ApiError: INVALID_REQUEST if an output has no JSON form and is not binary.
    """
    outputs = response.outputs
    if isinstance(binary, bool):
        flags = [binary] * len(outputs)
    else:
        flags = [binary.get(tensor.name, False) for tensor in outputs]
    key = _response_key(response) if flags and False not in flags else None
    body = _with_cached_header(key, outputs)
    if body is not None:
        return body
    header: dict[str, Any] = {"id": response.id} if response.id else {}
    header["model_name"] = response.model_name
    header["model_version"] = response.model_version
    if response.parameters:
        header["parameters"] = response.parameters
    return _cache_header(key, _encode_tensors(header, "outputs", outputs, flags))


def _request_key(request: InferRequest) -> tuple[Any, ...] | None:
    """Return the cache key of a request's JSON; None if not cacheable."""
    if request.id or request.parameters:
        return None
    if any(output.parameters for output in request.outputs):
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
    """Return the cache key of a response's JSON; None if not cacheable."""
    if response.id or response.parameters:
        return None
    tensors = header_key(response.outputs)
    if tensors is None:
        return None
    return "outputs", response.model_name, response.model_version, tensors


def _with_cached_header(
    key: tuple[Any, ...] | None, tensors: list[Tensor]
) -> EncodedBody | None:
    text = None if key is None else _headers.get(key)
    if text is None:
        return None
    chunks: list[Any] = [text]
    chunks += [tensor.data for tensor in tensors]
    return EncodedBody(chunks, len(text))


def _cache_header(key: tuple[Any, ...] | None, body: EncodedBody) -> EncodedBody:
    length = body.json_length
    if key is not None and length is not None and length <= MAX_TEMPLATE_BYTES:
        _headers.keep(key, bytes(body.chunks[0]))
    return body


def decode_infer_response(
    body: bytes | memoryview, json_length: int | None
) -> InferResponse:
    """Decode an inference response; binary outputs reference the body's memory.

    Raises:
        ApiError: the body is not a valid response.
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
    outputs = _parse_tensors(header, "outputs", reader)
    return InferResponse(
        model_name=str(header.get("model_name", "")),
        model_version=str(header.get("model_version") or ""),
        outputs=outputs,
        id=str(header.get("id") or ""),
        parameters=parse_parameters(header.get("parameters"), "parameters"),
    )


def parse_json_length(value: str | None, body_length: int) -> int | None:
    """Parse an ``Inference-Header-Content-Length`` header; None if it is absent.

    Raises:
        ApiError: INVALID_HEADER unless it is a decimal number up to the body's length.
    """
    if value is None:
        return None
    text = value.strip()
    is_number = text.isascii() and text.isdigit()
    if not is_number or len(text) > 19 or int(text) > body_length:
        fault = (
            f"inference header size should be in range (0, {body_length}), "
            f"got: {text[:40]!r}"
        )
        raise ApiError(ErrorCode.INVALID_HEADER, fault)
    return int(text)


def raw_input(
    body: memoryview, name: str, datatype: str, shape: Sequence[int]
) -> Tensor:
    """Return the single input of a request with a raw body, without JSON.

    Args:
        shape: the model's shape. At most one dimension may be -1; the body's length
            determines its size.

    Raises:
        ApiError: INVALID_TENSOR.
    """
    location = f"input {name!r}"
    kind = DATATYPES[datatype]
    if kind.name == "BYTES":  # as Triton: one element without a length in front
        return Tensor(name, datatype, (1,) * max(1, len(shape)), [bytes(body)])
    sizes = _raw_sizes(len(body), kind.itemsize, shape, location)
    return Tensor(name, datatype, sizes, from_raw(body, kind, sizes, location))


def _raw_sizes(
    length: int, itemsize: int, shape: Sequence[int], location: str
) -> tuple[int, ...]:
    """Return the shape of a raw body; its length determines a variable dimension."""
    sizes = list(shape)
    variable = [index for index, dim in enumerate(shape) if dim < 0]
    if len(variable) > 1:
        raise invalid(
            location,
            f"a raw body does not state the sizes of shape {sizes}; send a JSON header",
        )
    if variable:
        step = itemsize * element_count(dim for dim in shape if dim >= 0)
        if step == 0 or length % step:
            raise invalid(
                location, f"a raw body must be a multiple of {step} bytes, got {length}"
            )
        sizes[variable[0]] = length // step
    return tuple(sizes)


def _decode_requested_output(item: Any, location: str) -> RequestedOutput:
    name = parse_name(item, location)
    parameters = parse_tensor_parameters(item, location)
    classification = parameters.pop("classification", 0)
    if type(classification) is not int or not 0 <= classification <= MAX_ELEMENTS:
        raise bad_parameter(
            f"{location}.parameters.classification", "must be an integer from 0"
        )
    binary = pop_flag(
        parameters, "binary_data", f"{location}.parameters", default=False
    )
    return RequestedOutput(name, binary, classification, parameters)


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
    # Without raw bytes the body is plain JSON and has no announced length, as in
    # Triton.
    if not raw:
        return EncodedBody([text], None)
    text += b" " * (-len(text) % TENSOR_ALIGNMENT)
    return EncodedBody([text, *raw], len(text))
