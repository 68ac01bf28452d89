"""Cache JSON parts without changing any message."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pocketserve_wire import ApiError, Tensor
from pocketserve_wire.oip import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    decode_infer_request,
    decode_infer_response,
    encode_infer_request,
    encode_infer_response,
)
from pocketserve_wire.templates import MAX_TEMPLATES, TemplateCache


def tensor(
    first: int = 0, shape: tuple[int, ...] = (2, 3), datatype: str = "INT8"
) -> Tensor:
    """Return a tensor of one byte per element, counting from ``first``."""
    count = shape[0] * shape[1]
    return Tensor("x", datatype, shape, memoryview(bytes(range(first, first + count))))


def written(request: InferRequest) -> tuple[bytes, int]:
    body = encode_infer_request(request)
    assert body.json_length is not None
    return b"".join(body.chunks), body.json_length


def test_a_second_request_has_its_own_bytes() -> None:
    """The JSON part is cached, the bytes after it are each request's own."""
    first = InferRequest([tensor(0)])
    second = InferRequest([tensor(9)])
    bodies = [written(request) for request in (first, second, first)]
    assert bodies[0] == bodies[2]
    assert bodies[0][1] == bodies[1][1]
    assert decode_infer_request(*bodies[1]).inputs == second.inputs


OTHER_REQUESTS = [
    InferRequest([tensor(shape=(3, 2))]),
    InferRequest([tensor(datatype="UINT8")]),
    InferRequest([tensor()], binary_output=True),
    InferRequest([tensor()], id="7"),
    InferRequest([tensor()], parameters={"priority": 1}),
    InferRequest([tensor()], parameters={"priority": True}),
    InferRequest([tensor()], [RequestedOutput("y", binary=True)]),
    InferRequest([tensor()], [RequestedOutput("y", binary=True, classification=2)]),
    InferRequest([tensor()], [RequestedOutput("y", binary=True, parameters={"k": 1})]),
    InferRequest([dataclasses.replace(tensor(), parameters={"k": 1})]),
]


@pytest.mark.parametrize(
    "other",
    OTHER_REQUESTS,
    ids=[
        "shape",
        "datatype",
        "binary",
        "id",
        "number",
        "flag",
        "output",
        "classes",
        "output-own",
        "own",
    ],
)
def test_requests_with_one_difference_do_not_share_a_part(other: InferRequest) -> None:
    plain = InferRequest([tensor()])
    for request in (plain, other, plain, other):
        got = decode_infer_request(*written(request))
        assert got.inputs == request.inputs
        assert got.outputs == request.outputs
        assert got.parameters == request.parameters
        assert got.id == request.id
        assert got.binary_output == request.binary_output
        assert [type(value) for value in got.parameters.values()] == [
            type(v) for v in request.parameters.values()
        ]


def test_a_second_response_has_its_own_bytes_and_parameters() -> None:
    """Changing an answer doesn't affect later ones."""
    header = {"model_name": "m", "model_version": "1", "parameters": {"a": 1}, "outputs": [
        {"name": "y", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2, "k": "v"}}
    ],}  # fmt: skip
    text = json.dumps(header).encode()
    first = decode_infer_response(text + b"\1\2", len(text))
    assert isinstance(first.parameters, dict)
    assert isinstance(first.outputs[0].parameters, dict)
    first.parameters.clear()
    first.outputs[0].parameters.clear()
    first.outputs.clear()
    second = decode_infer_response(text + b"\3\4", len(text))
    assert second == InferResponse(
        "m",
        "1",
        [Tensor("y", "INT8", (2,), memoryview(b"\3\4"), {"k": "v"})],
        "",
        {"a": 1},
    )


def test_elements_are_checked_each_time() -> None:
    """A BOOL's bytes must be 0 or 1 in every answer, and a body must have its tensors'
    length.
    """
    body = encode_infer_response(
        InferResponse("m", "1", [Tensor("y", "BOOL", (1,), memoryview(b"\1"))]), True
    )
    text = bytes(body.chunks[0])
    assert (
        bytes(decode_infer_response(text + b"\0", len(text)).outputs[0].data) == b"\0"
    )
    for wrong in (b"\2", b"", b"\1\1"):
        with pytest.raises(ApiError):
            decode_infer_response(text + wrong, len(text))
    whole = encode_infer_response(InferResponse("m", "1", [tensor()]), True)
    assert whole.json_length is not None
    decode_infer_response(b"".join(whole.chunks), whole.json_length)
    for extra in (b"", bytes(7)):
        with pytest.raises(ApiError):
            decode_infer_response(bytes(whole.chunks[0]) + extra, whole.json_length)


def test_a_cache_is_bounded() -> None:
    """One entry too many empties it.

    The newest one is in it.
    """
    cache: TemplateCache[int, int] = TemplateCache()
    for number in range(3 * MAX_TEMPLATES + 1):
        cache.keep(number, number)
        assert cache[number] == number
        assert len(cache) <= MAX_TEMPLATES
