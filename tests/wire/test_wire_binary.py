"""Check binary tensors: sizes, lengths, bodies without JSON, and no copies."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from pocketserve.tensors import to_array
from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import (
    InferRequest,
    encode_infer_request,
    parse_json_length,
    raw_input,
)
from wire.wire_bodies import decode, refusal, request, with_binary

TENSOR = ErrorCode.INVALID_TENSOR
REQUEST = ErrorCode.INVALID_REQUEST
HEADER = ErrorCode.INVALID_HEADER
EIGHT = bytes(8)
BOOLS = {"datatype": "BOOL", "shape": [2]}
TEXTS = {"datatype": "BYTES", "shape": [2]}


def sized(size: object, raw: bytes = EIGHT, **item: object) -> tuple[bytes, int]:
    """Return a binary input of FP32 [2] that announces ``size``."""
    return with_binary(raw, {"parameters": {"binary_data_size": size}} | item)


CASES = {
    "fits": (with_binary(EIGHT), None),
    "four bytes short": (with_binary(EIGHT[:4]), TENSOR),
    "one byte short": (with_binary(EIGHT[:7]), TENSOR),
    "four bytes over": (with_binary(bytes(12)), TENSOR),
    "announces more than follows": (sized(8, EIGHT[:4]), TENSOR),
    "bytes behind the last tensor": (sized(8, bytes(9)), REQUEST),
    "bytes behind a JSON tensor": (
        with_binary(EIGHT, {"data": [1, 2], "parameters": {}}),
        REQUEST,
    ),
    "size negative": (sized(-1), TENSOR),
    "size true": (sized(True), TENSOR),
    "size 8.0": (sized(8.0), TENSOR),
    'size "8"': (sized("8"), TENSOR),
    "size null": (sized(None), ErrorCode.INVALID_PARAMETER),
    "size 2^31": (sized(2**31), TENSOR),
    "size 2^80": (sized(2**80), TENSOR),
    "data and size": (sized(8, data=[1, 2]), TENSOR),
    "data and size 0": (sized(0, b"", data=[1, 2]), TENSOR),
    "data null and size": (sized(8, data=None), None),
    "scalar": (with_binary(bytes(4), {"shape": []}), None),
    "empty": (with_binary(b"", {"shape": [0]}), None),
    "empty with a byte": (with_binary(b"\0", {"shape": [3, 0]}), TENSOR),
    "FP16": (with_binary(bytes(4), {"datatype": "FP16"}), None),
    "BF16": (with_binary(bytes(4), {"datatype": "BF16"}), None),
    "BOOL 0 and 1": (with_binary(b"\0\1", BOOLS), None),
    "BOOL 2": (with_binary(b"\1\2", BOOLS), TENSOR),
    "BOOL 255": (with_binary(b"\xff\0", BOOLS), TENSOR),
    "BYTES": (with_binary(struct.pack("<I2sI", 2, b"ab", 0), TEXTS), None),
    "BYTES element overruns": (
        with_binary(struct.pack("<I2sI", 2, b"ab", 1), TEXTS),
        TENSOR,
    ),
    "BYTES element says 2^32-1": (
        with_binary(struct.pack("<II", 2**32 - 1, 0), TEXTS),
        TENSOR,
    ),
    "BYTES length cut": (with_binary(struct.pack("<I2sH", 2, b"ab", 0), TEXTS), TENSOR),
    "BYTES leftover": (with_binary(struct.pack("<III", 0, 0, 0), TEXTS), TENSOR),
    "BYTES one element short": (with_binary(struct.pack("<I", 0), TEXTS), TENSOR),
    "BYTES none of [0]": (with_binary(b"", TEXTS | {"shape": [0]}), None),
    "BYTES 2^31-1 elements": (
        with_binary(EIGHT, TEXTS | {"shape": [2**31 - 1]}),
        TENSOR,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_sizes_must_be_exact(case: str) -> None:
    """Every byte belongs to one tensor, which has exactly the bytes that it needs."""
    (body, length), code = CASES[case]
    assert refusal(body, length) == code


def test_a_bytes_element_of_70000() -> None:
    """Lengths have 32 bits, not 16."""
    element = bytes(range(256)) * 273 + b"\xff" * 112
    body, length = with_binary(
        struct.pack("<I", 70_000) + element + struct.pack("<I", 0), TEXTS
    )
    assert decode(body, length).inputs[0].data == [element, b""]


HEADERS = {
    "abc": HEADER,
    "": HEADER,
    "-1": HEADER,
    "-0": HEADER,
    "+5": HEADER,
    "1.0": HEADER,
    "1e1": HEADER,
    "0x10": HEADER,
    "1_0": HEADER,
    "1 0": HEADER,
    "1,1": HEADER,
    "٣": HEADER,
    "²": HEADER,
    "9" * 30: HEADER,
    "9" * 5000: HEADER,
}


@pytest.mark.parametrize("text", HEADERS, ids=lambda text: ascii(text)[:24])
def test_malformed_header_lengths_are_refused(text: str) -> None:
    """Anything but a plain decimal number is INVALID_HEADER."""
    assert refusal(request(), text) == HEADERS[text]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (0, None),
        (1, HEADER),
        (10**6, HEADER),
        (-1, ErrorCode.MALFORMED_JSON),
    ],
    ids=["whole body", "one beyond", "far beyond", "one short"],
)
def test_header_lengths_must_match_the_body(
    change: int, code: ErrorCode | None
) -> None:
    """Without binary tensors the length may equal the body's; too short a length cuts
    the JSON.
    """
    assert refusal(request(), len(request()) + change) == code


def test_header_lengths_are_read() -> None:
    """A missing one is None.

    Blanks and leading zeros are allowed.
    """
    read = [parse_json_length(text, 40) for text in (None, "0", "40", " 12\t", "007")]
    assert read == [None, 0, 40, 12, 7]


def test_padding_counts_in_the_length() -> None:
    """Spaces after the JSON align the raw tensors."""
    header = request({"data": ..., "parameters": {"binary_data_size": 8}})
    padded = header + b" " * (-len(header) % 64)
    assert decode(padded + EIGHT, len(padded)).inputs[0].shape == (2,)


@pytest.mark.parametrize("length", [None, "whole"])
def test_an_empty_input_with_and_without_the_header(length: str | None) -> None:
    """kserve sends a binary input of size 0 without the header: the request is the
    same.
    """
    body = request(
        {
            "data": ...,
            "shape": [0, 2],
            "parameters": {"binary_data_size": 0},
        }
    )
    (tensor,) = decode(body, len(body) if length else None).inputs
    assert tensor.shape == (0, 2)
    assert bytes(tensor.data) == b""


def test_length_zero_is_a_body_without_json() -> None:
    """The whole body is one input's bytes, and the answer is binary."""
    for body in (b"", b"\x00\x01", request()):
        got = decode(body, 0)
        assert got.raw is not None
        assert got.raw.obj is body
        assert got.inputs == []
        assert got.outputs == []
        assert got.binary_output is True


RAW = [
    ("FP32", [2], bytes(8), (2,)),
    ("FP32", [-1, 2], bytes(24), (3, 2)),
    ("UINT8", [1, -1, 3], bytes(12), (1, 4, 3)),
    ("FP32", [-1], b"", (0,)),
    ("FP32", [], bytes(4), ()),
    ("FP32", [3], bytes(8), None),
    ("FP32", [], bytes(8), None),
    ("FP32", [-1, 2], bytes(12), None),
    ("FP32", [-1, -1], bytes(4), None),
    ("INT8", [-1, 0], bytes(4), None),
    ("INT8", [-1, 0], b"", None),
    ("BOOL", [-1], b"\0\1\2", None),
]


@pytest.mark.parametrize(("datatype", "shape", "body", "expected"), RAW)
def test_a_raw_body_determines_one_variable_dimension(
    datatype: str, shape: list[int], body: bytes, expected: tuple[int, ...] | None
) -> None:
    """Two variable dimensions can't be told apart."""
    if expected is None:
        with pytest.raises(ApiError) as caught:
            raw_input(memoryview(body), "x", datatype, shape)
        assert caught.value.code is TENSOR
        return
    tensor = raw_input(memoryview(body), "x", datatype, shape)
    assert tensor.shape == expected
    assert bytes(tensor.data) == body


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([-1], (1,)),
        ([1], (1,)),
        ([], (1,)),
        ([-1, 1], (1, 1)),
    ],
)
def test_a_raw_bytes_body_is_one_element(
    shape: list[int], expected: tuple[int, ...]
) -> None:
    """As in Triton, it has no length in front."""
    tensor = raw_input(memoryview(b"\x05\0\0\0hello"), "x", "BYTES", shape)
    assert tensor.shape == expected
    assert tensor.data == [b"\x05\0\0\0hello"]


# No copies

PHOTO = {"datatype": "UINT8", "shape": [1, 224, 224, 3]}
PHOTO_BYTES = 150_528


def address(buffer: object) -> int:
    """Return the address of a buffer."""
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def test_a_binary_tensor_is_a_view_into_the_body() -> None:
    """A decoded photo is the request body's own memory."""
    body, length = with_binary(bytes(PHOTO_BYTES), PHOTO)
    data = decode(body, length).inputs[0].data
    assert isinstance(data, memoryview)
    assert data.obj is body
    assert data.nbytes == PHOTO_BYTES
    assert address(data) == address(body) + length


@pytest.mark.parametrize("as_array", [np.asarray, to_array])
def test_arrays_share_the_body(as_array: object) -> None:
    """The array interface and to_array give read-only views into the body."""
    assert callable(as_array)
    body, length = with_binary(bytes(PHOTO_BYTES), PHOTO)
    array = as_array(decode(body, length).inputs[0])
    assert array.__array_interface__["data"][0] == address(body) + length
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))
    assert array.shape == (1, 224, 224, 3)
    assert array.dtype == np.uint8
    assert array.flags.writeable is False


def test_encoding_does_not_copy_the_tensor() -> None:
    data = memoryview(bytes(PHOTO_BYTES))
    tensor = Tensor("x", "UINT8", (PHOTO_BYTES,), data)
    _, chunk = encode_infer_request(InferRequest([tensor])).chunks
    assert isinstance(chunk, memoryview)
    assert chunk.obj is data.obj


@pytest.mark.parametrize("offset", range(8))
def test_arrays_at_odd_addresses(offset: int) -> None:
    """Raw tensors may start anywhere: unaligned arrays have the right numbers."""
    raw = struct.pack("<4d", 1.5, -0.0, 2.0, -3.25)
    item = {"datatype": "FP64", "shape": [4]}
    header, _ = with_binary(b"", item | {"parameters": {"binary_data_size": 32}})
    header += b" " * offset
    (tensor,) = decode(header + raw, len(header)).inputs
    assert (
        np.asarray(tensor).tolist()
        == to_array(tensor).tolist()
        == [1.5, -0.0, 2.0, -3.25]
    )


def test_bytes_tensors_have_no_buffer() -> None:
    """NumPy can't view BYTES elements in place.

    To_array makes objects of them.
    """
    tensor = Tensor("x", "BYTES", (2, 1), [b"a", b"\xff\0"])
    assert not hasattr(tensor, "__array_interface__")
    array = to_array(tensor)
    assert array.dtype == object
    assert array.shape == (2, 1)
    assert array.reshape(-1).tolist() == [b"a", b"\xff\0"]
