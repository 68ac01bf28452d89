"""Builders and strategies that the tests of the wire codec share."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from pocketserve_wire import DATATYPES, ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import InferRequest, decode_infer_request, parse_json_length

# The same examples in every run: a failure that comes and goes helps nobody.
SETTINGS = settings(derandomize=True, deadline=None, database=None, max_examples=60)

FIXED = [name for name in DATATYPES if name != "BYTES"]
JSON_TYPES = [name for name in FIXED if name not in ("FP16", "BF16")]

names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    min_size=1,
    max_size=12,
)
values = st.one_of(
    st.text(max_size=8),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.booleans(),
)
shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)


def parameters(*reserved: str) -> st.SearchStrategy[dict[str, Any]]:
    """Parameter objects without the keys that steer the encoding."""
    return st.dictionaries(
        names.filter(lambda name: name not in reserved), values, max_size=3
    )


@st.composite
def tensors(
    draw: st.DrawFn,
    *,
    datatypes: list[str],
    text: bool = False,
    name: str | None = None,
) -> Tensor:
    """Tensors of any shape and content; ``text`` keeps BYTES elements to what JSON can hold."""
    datatype, shape = draw(st.sampled_from(datatypes)), draw(shapes)
    own_name = name if name is not None else draw(names)
    own_parameters = draw(parameters("binary_data_size"))
    count = math.prod(shape)
    if datatype == "BYTES":
        characters = st.text(st.characters(exclude_categories=["Cs"]), max_size=6).map(
            str.encode
        )
        element = characters if text else st.binary(max_size=6)
        data: Any = draw(st.lists(element, min_size=count, max_size=count))
        return Tensor(own_name, datatype, shape, data, own_parameters)
    size = count * DATATYPES[datatype].itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if datatype == "BOOL":
        raw = bytes(byte & 1 for byte in raw)
    return Tensor(own_name, datatype, shape, memoryview(raw), own_parameters)


def same(left: Tensor, right: Tensor, *, nan_bits: bool = True) -> bool:
    """Whether two tensors are alike bit for bit; JSON keeps no NaN payload, so ``nan_bits`` may leave it out."""
    facts = [(t.name, t.datatype, t.shape, dict(t.parameters)) for t in (left, right)]
    if facts[0] != facts[1]:
        return False
    if left.datatype == "BYTES" or nan_bits or left.datatype not in ("FP32", "FP64"):
        return list(left.data) == list(right.data)
    arrays = [
        np.frombuffer(t.data, DATATYPES[t.datatype].typestr) for t in (left, right)
    ]
    numbers = [array[~np.isnan(array)].tobytes() for array in arrays]
    return (
        bool((np.isnan(arrays[0]) == np.isnan(arrays[1])).all())
        and numbers[0] == numbers[1]
    )


def document(datatype: str, data: str, shape: str = "[1]") -> bytes:
    """A request with one input whose ``data`` is JSON text as written."""
    tensor = f'{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}}}'
    return f'{{"inputs":[{tensor}]}}'.encode()


def request(item: dict[str, Any] | None = None, **members: Any) -> bytes:
    """A valid request of one FP32 input, with changes; a value of ``...`` takes the member away."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]} | (
        item or {}
    )
    whole = {
        "inputs": [{key: value for key, value in tensor.items() if value is not ...}]
    } | members
    return json.dumps(
        {key: value for key, value in whole.items() if value is not ...}
    ).encode()


def with_binary(
    raw: bytes, item: dict[str, Any] | None = None, **members: Any
) -> tuple[bytes, int]:
    """A request whose input is binary (unless ``item`` says otherwise), and the length of its JSON part."""
    binary = {"data": ..., "parameters": {"binary_data_size": len(raw)}}
    header = request(binary | (item or {}), **members)
    return header + raw, len(header)


def decode(body: bytes, json_length: str | int | None = None) -> InferRequest:
    """Decode as a transport does, from the body and the header's text."""
    text = None if json_length is None else str(json_length)
    return decode_infer_request(body, parse_json_length(text, len(body)))


def refusal(body: bytes, json_length: str | int | None = None) -> ErrorCode | None:
    """The code that a body is refused with; None when it is accepted."""
    try:
        decode(body, json_length)
    except ApiError as error:
        refused = error
    else:
        return None
    assert refused.message.strip(), "an error says what is wrong"
    return refused.code
