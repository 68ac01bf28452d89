"""Test the limits of tensors in JSON: element types, ranges and shapes."""

from __future__ import annotations

import math

import pytest

from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.limits import MAX_ELEMENTS, MAX_RANK
from pocketserve_wire.oip import InferResponse, encode_infer_response
from pocketserve_wire.tensor import to_json_values
from wire.wire_bodies import decode, document, refusal, request

TENSOR = ErrorCode.INVALID_TENSOR
REFUSED = [
    ("BOOL", "[1]"),
    ("BOOL", "[0]"),
    ("BOOL", '["true"]'),
    ("BOOL", "[null]"),
    ("BOOL", "[1.0]"),
    ("UINT8", "[300]"),
    ("UINT8", "[256]"),
    ("UINT8", "[-1]"),
    ("UINT16", "[65536]"),
    ("UINT32", "[4294967296]"),
    ("UINT32", "[-1]"),
    ("UINT64", "[18446744073709551616]"),
    ("UINT64", "[-1]"),
    ("INT8", "[128]"),
    ("INT8", "[-129]"),
    ("INT16", "[32768]"),
    ("INT32", "[1099511627776]"),
    ("INT32", "[1.0]"),
    ("INT32", "[1e3]"),
    ("INT32", "[-0.0]"),
    ("INT32", "[true]"),
    ("INT32", '["1"]'),
    ("INT32", "[null]"),
    ("INT32", "[NaN]"),
    ("UINT8", "[NaN]"),
    ("INT64", "[Infinity]"),
    ("INT64", "[9223372036854775808]"),
    ("INT64", "[-9223372036854775809]"),
    ("INT64", "[" + "9" * 4000 + "]"),
    ("FP32", "[1e300]"),
    ("FP32", "[1e400]"),
    ("FP64", "[1e400]"),
    ("FP64", "[-1e400]"),
    ("FP64", "[1" + "0" * 400 + ".0]"),
    ("FP32", "[-3.5e38]"),
    ("FP32", "[" + "9" * 39 + "]"),
    ("FP32", "[" + "9" * 400 + "]"),
    ("FP32", "[true]"),
    ("FP32", '["1.0"]'),
    ("FP32", "[{}]"),
    ("FP64", "[" + "9" * 400 + "]"),
    ("FP64", "[false]"),
    ("FP16", "[1.0]"),
    ("BF16", "[1.0]"),
    ("BYTES", "[1]"),
    ("BYTES", "[null]"),
    ("BYTES", "[true]"),
    ("BYTES", '["\\ud800"]'),
    ("BYTES", '["a\\udc00b"]'),
    ("FP32", "1.0"),
    ("FP32", '"AAAAAA=="'),
    ("FP32", "{}"),
    ("FP32", "true"),
    ("FP32", "null"),
    ("FP32", "[]"),
    ("FP32", "[[]]"),
    ("FP32", "[1, 2]"),
    ("FP32", "[1, [2]]"),
]


@pytest.mark.parametrize(("datatype", "data"), REFUSED)
def test_refused_elements(datatype: str, data: str) -> None:
    """A value outside the datatype is refused, never cut, rounded or converted."""
    assert refusal(document(datatype, data)) == TENSOR


ACCEPTED = [
    ("BOOL", "[true]", [True]),
    ("UINT8", "[255]", [255]),
    ("UINT64", "[18446744073709551615]", [2**64 - 1]),
    ("INT8", "[-128]", [-128]),
    ("INT64", "[-9223372036854775808]", [-(2**63)]),
    ("INT32", "[-0]", [0]),
    ("FP32", "[1]", [1.0]),
    ("FP32", "[1e3]", [1000.0]),
    ("FP32", "[3.4028235e38]", [3.4028234663852886e38]),
    ("FP32", "[1e-60]", [0.0]),
    ("FP32", "[Infinity]", [math.inf]),
    ("FP32", "[-Infinity]", [-math.inf]),
    ("FP64", "[-Infinity]", [-math.inf]),
    ("FP64", "[5e-324]", [5e-324]),
    ("BYTES", '[""]', [""]),
    ("BYTES", '["\\u0000"]', ["\0"]),
    ("BYTES", '["\\ud83d\\ude00"]', ["\U0001f600"]),
    ("FP32", "[[[1]]]", [1.0]),
]


@pytest.mark.parametrize(("datatype", "data", "expected"), ACCEPTED)
def test_accepted_elements(datatype: str, data: str, expected: list[object]) -> None:
    """Values at the ends of the ranges are unchanged."""
    assert to_json_values(decode(document(datatype, data)).inputs[0]) == expected


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("data", ["[null]", "[NaN]"])
def test_null_is_nan(datatype: str, data: str) -> None:
    """Both clients write null for NaN, and tritonclient the bare token."""
    (value,) = to_json_values(decode(document(datatype, data)).inputs[0])
    assert math.isnan(value)


@pytest.mark.parametrize(
    "data", ["[[1,2],[3,4]]", "[1,2,3,4]", "[[[1]],[[2,3]],4]", "[[],[1,2,3,4],[]]"]
)
@pytest.mark.parametrize("shape", ["[4]", "[2,2]", "[1,4]", "[1,1,4,1]"])
def test_nesting_of_data_is_ignored(data: str, shape: str) -> None:
    """As in Triton, data is flattened and only the count is compared."""
    (tensor,) = decode(document("INT32", data, shape)).inputs
    assert to_json_values(tensor) == [1, 2, 3, 4]
    assert list(tensor.shape) == [int(dim) for dim in shape[1:-1].split(",")]


SHAPES = {
    "[]": None,
    "[1]": None,
    "[1,1,1]": None,
    "[" + ",".join("1" * MAX_RANK) + "]": None,
    "[" + ",".join("1" * (MAX_RANK + 1)) + "]": TENSOR,
    "[" + ",".join("1" * 5000) + "]": TENSOR,
    "[-1]": TENSOR,
    "[-1,-1]": TENSOR,
    "[1,-9]": TENSOR,
    "[true]": TENSOR,
    "[1.0]": TENSOR,
    '["1"]': TENSOR,
    "[null]": TENSOR,
    "[[1]]": TENSOR,
    "[NaN]": TENSOR,
    "1": TENSOR,
    "null": TENSOR,
    "{}": TENSOR,
    f"[{MAX_ELEMENTS}]": TENSOR,
    f"[{MAX_ELEMENTS + 1}]": TENSOR,
    "[9223372036854775808]": TENSOR,
    "[4294967296,4294967296]": TENSOR,
    "[2,9223372036854775807]": TENSOR,
    "[" + ",".join(["2147483647"] * 32) + "]": TENSOR,
    "[" + "9" * 4000 + "]": TENSOR,
    "[0]": TENSOR,  # one element in data
    "[2]": TENSOR,
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[:40])
def test_bad_shapes_are_refused(shape: str) -> None:
    """Sizes can't be negative, and their product is limited before allocation."""
    assert refusal(document("FP32", "[1]", shape)) == SHAPES[shape]


@pytest.mark.parametrize(
    ("shape", "code"),
    [
        ("[0]", None),
        ("[0,0]", None),
        ("[3,0,7]", None),
        ("[0,2147483647]", None),
        ("[0,2147483648]", TENSOR),
        ("[0,9223372036854775808]", TENSOR),
        # NumPy cannot make it, although it is empty.
        (
            "[0,2147483647,2147483647,2147483647]",
            TENSOR,
        ),
        ("[0,-1]", TENSOR),
    ],
)
def test_empty_tensors_have_the_same_limits(shape: str, code: ErrorCode | None) -> None:
    assert refusal(document("INT64", "[]", shape)) == code


def test_a_missing_shape_is_refused() -> None:
    assert refusal(request({"shape": ...})) == TENSOR


@pytest.mark.parametrize("data", [..., None])
def test_missing_and_null_data_are_refused(data: object) -> None:
    assert refusal(request({"data": data})) == TENSOR


@pytest.mark.parametrize(
    ("datatype", "data", "part"),
    [
        ("UINT8", "[1, 300]", r"data\[1\] is 300, but UINT8 ranges from 0 to 255"),
        ("INT32", "[1.0, 2]", r"data\[0\] is 1.0, but INT32 takes integers"),
        ("BOOL", "[true, 1]", r"data\[1\] is 1, but BOOL takes true or false"),
        (
            "FP64",
            "[Infinity, 1e400]",
            r"data\[1\] is beyond 1.8e308, which is too large for FP64",
        ),
        ("FP32", "[1e300, 0]", r"data\[0\] is 1e\+300, which is too large"),
        ("INT8", "[0, null]", r"data\[1\] is null"),
        ("INT8", "[NaN, 0]", r"data\[0\] is NaN"),
        ("FP16", "[1, 2]", "binary"),
        ("INT64", "[" + "9" * 4000 + ",1]", "over 30 digits, but INT64 ranges"),
    ],
)
def test_errors_name_the_element(datatype: str, data: str, part: str) -> None:
    """The message contains the element's position, value and allowed range."""
    with pytest.raises(ApiError, match=part) as caught:
        decode(document(datatype, data, "[2]"))
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("y", "FP16", (1,), memoryview(b"\0\x3c")),
        Tensor("y", "BF16", (1,), memoryview(b"\x80\x3f")),
        Tensor("y", "BYTES", (1,), [b"\xff"]),
    ],
)
def test_outputs_without_a_json_form_must_be_binary(tensor: Tensor) -> None:
    """Examples are FP16, BF16 and BYTES that are not UTF-8."""
    response = InferResponse("m", "1", [tensor])
    with pytest.raises(ApiError, match="binary_data") as caught:
        encode_infer_response(response, {})
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert encode_infer_response(response, {"y": True}).json_length is not None
