"""Encode and decode every datatype in both forms, bit for bit."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve_wire import DATATYPES, Tensor, strict_json
from pocketserve_wire.oip import (
    EncodedBody,
    InferRequest,
    InferResponse,
    RequestedOutput,
    decode_infer_request,
    decode_infer_response,
    encode_infer_request,
    encode_infer_response,
)
from pocketserve_wire.tensor import from_json_values, from_raw, to_json_values, to_raw
from wire.wire_bodies import (
    FIXED,
    JSON_TYPES,
    SETTINGS,
    decode,
    names,
    parameters,
    same,
    tensors,
)

ANY = [*FIXED, "BYTES"]


def body_of(body: EncodedBody) -> bytes:
    """Return a body's bytes as a transport sends them."""
    sent = b"".join(body.chunks)
    assert len(sent) == body.length
    return sent


def through_json(tensor: Tensor) -> Tensor:
    """Write a tensor as JSON text and read it again."""
    text = strict_json.dumps(to_json_values(tensor))
    data = from_json_values(
        strict_json.loads(text), DATATYPES[tensor.datatype], tensor.shape, "x"
    )
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)


def through_raw(tensor: Tensor) -> Tensor:
    """Write a tensor as raw bytes and read it again."""
    data = from_raw(
        memoryview(bytes(to_raw(tensor))), DATATYPES[tensor.datatype], tensor.shape, "x"
    )
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)


@pytest.mark.parametrize("datatype", [*JSON_TYPES, "BYTES"])
@SETTINGS
@given(data=st.data())
def test_json_keeps_every_value(datatype: str, data: st.DataObject) -> None:
    """A NaN stays a NaN, but its bits may change."""
    tensor = data.draw(tensors(datatypes=[datatype], text=True))
    assert same(through_json(tensor), tensor, nan_bits=False)


@pytest.mark.parametrize("datatype", ANY)
@SETTINGS
@given(data=st.data())
def test_raw_bytes_keep_every_bit(datatype: str, data: st.DataObject) -> None:
    """This includes FP16, BF16 and arbitrary BYTES."""
    tensor = data.draw(tensors(datatypes=[datatype]))
    assert same(through_raw(tensor), tensor)


SPECIAL: dict[str, list[Any]] = {
    "FP32": [
        0.0,
        -0.0,
        1e-45,
        -1.1754942e-38,
        3.4028234663852886e38,
        math.inf,
        -math.inf,
        math.nan,
        0.1,
    ],
    "FP64": [
        0.0,
        -0.0,
        5e-324,
        -2.2250738585072e-308,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        math.nan,
        0.1,
    ],
    "UINT64": [0, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1],
    "INT64": [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1],
}


@pytest.mark.parametrize("datatype", SPECIAL)
def test_special_values_survive_json(datatype: str) -> None:
    """They include negative zero, subnormals, maxima, infinities and 64-bit integers."""
    array = np.array(SPECIAL[datatype], DATATYPES[datatype].typestr)
    tensor = Tensor("x", datatype, array.shape, memoryview(array.tobytes()))
    assert same(through_json(tensor), tensor, nan_bits=False)


def test_a_float_is_printed_as_the_double_of_the_same_value() -> None:
    """0.1 in FP32 is not 0.1 in JSON, as in Triton.

    Reading it returns the same float.
    """
    tensor = Tensor("x", "FP32", (1,), memoryview(struct.pack("<f", 0.1)))
    assert strict_json.dumps(to_json_values(tensor)) == b"[0.10000000149011612]"


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (0,),
        (3, 0),
        (0, 0, 2),
        (1, 1),
    ],
)
@pytest.mark.parametrize("datatype", [*JSON_TYPES, "BYTES"])
def test_scalars_and_empty_tensors_survive_both_forms(
    datatype: str, shape: tuple[int, ...]
) -> None:
    count = math.prod(shape)
    data: Any = (
        [b"t"] * count
        if datatype == "BYTES"
        else memoryview(bytes(count * DATATYPES[datatype].itemsize))
    )
    tensor = Tensor("x", datatype, shape, data)
    assert same(through_json(tensor), tensor)
    assert same(through_raw(tensor), tensor)
    assert len(to_json_values(tensor)) == count


@st.composite
def requests(draw: st.DrawFn, datatypes: list[str], *, text: bool) -> InferRequest:
    """Generate inference requests with all optional members."""
    unique = draw(st.lists(names, max_size=3, unique=True))
    asked = draw(st.lists(names, max_size=3, unique=True))
    own = parameters("binary_data", "classification")
    return InferRequest(
        inputs=[
            draw(tensors(datatypes=datatypes, text=text, name=name)) for name in unique
        ],
        outputs=[
            RequestedOutput(
                name, draw(st.booleans()), draw(st.integers(0, 2**31 - 1)), draw(own)
            )
            for name in asked
        ],
        id=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=12)),
        parameters=draw(parameters("binary_data_output")),
        binary_output=draw(st.booleans()),
    )


def check_request(sent: InferRequest, *, binary: bool) -> None:
    """Encode, decode and compare."""
    body = encode_infer_request(sent, binary=binary)
    got = decode_infer_request(body_of(body), body.json_length)
    assert [
        same(a, b, nan_bits=binary)
        for a, b in zip(got.inputs, sent.inputs, strict=True)
    ].count(False) == 0
    assert got.outputs == sent.outputs
    assert got.id == sent.id
    assert got.parameters == sent.parameters
    assert got.binary_output == sent.binary_output
    assert got.raw is None


@SETTINGS
@given(sent=requests(ANY, text=False))
def test_requests_with_binary_tensors_survive(sent: InferRequest) -> None:
    check_request(sent, binary=True)


@SETTINGS
@given(sent=requests([*JSON_TYPES, "BYTES"], text=True))
def test_requests_with_json_tensors_survive(sent: InferRequest) -> None:
    check_request(sent, binary=False)


@st.composite
def responses(draw: st.DrawFn) -> tuple[InferResponse, dict[str, bool]]:
    """Generate responses that mix JSON and binary outputs."""
    unique = draw(st.lists(names, max_size=4, unique=True))
    binary = {name: draw(st.booleans()) for name in unique}
    outputs = [
        draw(
            tensors(
                datatypes=ANY if binary[name] else [*JSON_TYPES, "BYTES"],
                text=not binary[name],
                name=name,
            )
        )
        for name in unique
    ]
    sent = InferResponse(
        draw(names), draw(names), outputs, id=draw(names), parameters=draw(parameters())
    )
    return sent, binary


@SETTINGS
@given(case=responses())
def test_responses_that_mix_json_and_binary_survive(
    case: tuple[InferResponse, dict[str, bool]],
) -> None:
    sent, binary = case
    body = encode_infer_response(sent, binary)
    got = decode_infer_response(body_of(body), body.json_length)
    for mine, theirs in zip(got.outputs, sent.outputs, strict=True):
        assert same(mine, theirs, nan_bits=binary[theirs.name])
    assert got.model_name == sent.model_name
    assert got.model_version == sent.model_version
    assert got.id == sent.id
    assert got.parameters == sent.parameters


@SETTINGS
@given(case=responses())
def test_raw_tensors_start_at_a_multiple_of_eight(
    case: tuple[InferResponse, dict[str, bool]],
) -> None:
    """The JSON is padded with spaces, which count in its length."""
    sent, binary = case
    body = encode_infer_response(sent, binary)
    has_raw = any(
        to_raw(tensor).nbytes for tensor in sent.outputs if binary[tensor.name]
    )
    assert (body.json_length is not None) == has_raw
    assert len(body.chunks[0]) == (body.json_length or body.length)
    assert (body.json_length or 0) % 8 == 0
    json.loads(bytes(body.chunks[0]))


def test_one_request_mixes_json_and_binary() -> None:
    """Raw tensors follow in the order of the inputs with binary_data_size."""
    inputs = [
        {
            "name": "a",
            "datatype": "INT16",
            "shape": [2],
            "parameters": {"binary_data_size": 4},
        },
        {"name": "b", "datatype": "FP32", "shape": [1], "data": [0.5]},
        {
            "name": "c",
            "datatype": "BYTES",
            "shape": [2],
            "parameters": {"binary_data_size": 11, "k": "v"},
        },
        {"name": "d", "datatype": "BYTES", "shape": [1], "data": ["é"]},
    ]
    header = json.dumps({"inputs": inputs}).encode()
    raw = struct.pack("<hh", -1, 2) + struct.pack("<I3sI", 3, b"\xff\0a", 0)
    a, b, c, d = decode(header + raw, len(header)).inputs
    assert to_json_values(a) == [-1, 2]
    assert to_json_values(b) == [0.5]
    assert c.data == [b"\xff\0a", b""]
    assert c.parameters == {"k": "v"}
    assert d.data == ["é".encode()]


def test_the_answer_of_empty_outputs_is_plain_json() -> None:
    """There is no header length if every binary output has size 0."""
    outputs = [
        Tensor("y", "FP32", (0, 4), memoryview(b"")),
        Tensor("t", "BYTES", (0,), []),
    ]
    body = encode_infer_response(
        InferResponse("m", "1", outputs), {"y": True, "t": True}
    )
    assert body.json_length is None
    answered = json.loads(body_of(body))["outputs"]
    assert [(output["parameters"], "data" in output) for output in answered] == [
        ({"binary_data_size": 0}, False)
    ] * 2
    assert [
        tensor.shape for tensor in decode_infer_response(body_of(body), None).outputs
    ] == [(0, 4), (0,)]


def test_a_response_may_lack_an_id_and_have_a_null_version() -> None:
    """kserve answers with model_version null; a missing id stays missing."""
    got = decode_infer_response(
        b'{"model_name":"m","model_version":null,"outputs":[]}', None
    )
    assert got.model_version == ""
    assert got.id == ""
    assert got.outputs == []
    assert b'"id"' not in body_of(
        encode_infer_response(InferResponse("m", "1", []), {})
    )
