"""Build request bodies and strategies for the wire codec's tests."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from pocketserve_wire import DATATYPES, ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import InferRequest, decode_infer_request, parse_json_length

# The same examples in every run, because a failure must be reproducible.
SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
)

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
    """Generate parameters without the keys that control the encoding."""
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
    """Generate tensors; ``text`` restricts BYTES elements to JSON's characters."""
    datatype = draw(st.sampled_from(datatypes))
    shape = draw(shapes)
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
    """Compare two tensors bit for bit, optionally without NaN payloads."""
    facts = []
    for t in (left, right):
        facts.append((t.name, t.datatype, t.shape, dict(t.parameters)))
    if facts[0] != facts[1]:
        return False
    if left.datatype == "BYTES" or nan_bits or left.datatype not in ("FP32", "FP64"):
        return list(left.data) == list(right.data)
    arrays = []
    for t in (left, right):
        arrays.append(np.frombuffer(t.data, DATATYPES[t.datatype].typestr))
    numbers = [array[~np.isnan(array)].tobytes() for array in arrays]
    return (
        bool((np.isnan(arrays[0]) == np.isnan(arrays[1])).all())
        and numbers[0] == numbers[1]
    )


def document(datatype: str, data: str, shape: str = "[1]") -> bytes:
    """Return a request with one input whose ``data`` is this JSON text."""
    tensor = f'{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}}}'
    return f'{{"inputs":[{tensor}]}}'.encode()


def request(item: dict[str, Any] | None = None, **members: Any) -> bytes:
    """Return a valid request with changes.

    The value ``...`` removes a member.
    """
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [2],
        "data": [1, 2],
    } | (item or {})
    whole = {
        "inputs": [{key: value for key, value in tensor.items() if value is not ...}]
    } | members
    return json.dumps(
        {key: value for key, value in whole.items() if value is not ...}
    ).encode()


def with_binary(
    raw: bytes, item: dict[str, Any] | None = None, **members: Any
) -> tuple[bytes, int]:
    """Return a request with a binary input (unless ``item`` differs), and its JSON
    part's length.
    """
    binary = {"data": ..., "parameters": {"binary_data_size": len(raw)}}
    header = request(binary | (item or {}), **members)
    return header + raw, len(header)


def decode(body: bytes, json_length: str | int | None = None) -> InferRequest:
    """Decode a body and the header's text as a transport does."""
    text = None if json_length is None else str(json_length)
    return decode_infer_request(body, parse_json_length(text, len(body)))


def refusal(body: bytes, json_length: str | int | None = None) -> ErrorCode | None:
    """Return the code of a refused body, or None."""
    try:
        decode(body, json_length)
    except ApiError as error:
        refused = error
    else:
        return None
    assert refused.message.strip(), "an error says what is wrong"
    return refused.code
