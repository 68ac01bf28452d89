"""Check the table of errors, and that the codec raises no others."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.errors import code_named
from pocketserve_wire.oip import (
    decode_infer_request,
    decode_infer_response,
    parse_json_length,
)
from wire.wire_bodies import SETTINGS, names, request, with_binary


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_every_code_has_an_error_status(code: ErrorCode) -> None:
    """4xx blames the request, 5xx the server.

    A code is found by its name.
    """
    assert 400 <= code.status < 600
    assert ErrorCode[code.name] is code is code_named(code.name)
    assert ApiError(code, "text").status == code.status


def test_names_and_values_are_unique() -> None:
    """Codes that share a status are distinct, not aliases."""
    assert (
        len(ErrorCode.__members__)
        == len(list(ErrorCode))
        == len({code.value for code in ErrorCode})
    )
    assert ErrorCode.MALFORMED_JSON is not ErrorCode.INVALID_TENSOR


def test_only_temporary_failures_are_retryable() -> None:
    retryable = {code.name for code in ErrorCode if code.retryable}
    passing = {
        "QUEUE_FULL",
        "MODEL_NOT_READY",
        "MEMORY_BUDGET",
        "LOW_POWER",
        "SHUTTING_DOWN",
        "DEADLINE_EXCEEDED",
    }
    assert retryable == passing


@pytest.mark.parametrize(
    "message", ["plain", "é \U0001f600", 'quote " \\ \n', "half \ud800", "\0"]
)
def test_the_body_is_ascii_json(message: str) -> None:
    """Every client can read the body, whatever the message quotes."""
    body = ApiError(ErrorCode.INVALID_TENSOR, message).body()
    assert body.isascii()
    assert json.loads(body) == {"error": message, "code": "INVALID_TENSOR"}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "invalid_tensor",
        "OTHER",
        None,
        400,
        ["INTERNAL"],
    ],
)
def test_unknown_codes_are_not_found(name: object) -> None:
    assert code_named(name) is None


def check_only_api_errors(body: bytes, json_length: int | None) -> None:
    """Decode as both kinds of message.

    Only ApiError may be raised.
    """
    bodies = []
    for decode in (decode_infer_request, decode_infer_response):
        try:
            decode(body, json_length)
        except ApiError as error:
            bodies.append(error.body())
    assert all(json.loads(text)["code"] in ErrorCode.__members__ for text in bodies)


def seeds() -> list[bytes]:
    """Return valid bodies to damage."""
    binary, _ = with_binary(
        struct.pack("<ff", 1.5, -2),
        {"datatype": "FP32"},
        id="7",
        outputs=[{"name": "y"}],
    )
    texts, _ = with_binary(struct.pack("<I2sI", 2, b"ab", 0), {"datatype": "BYTES"})
    response = (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"y",'
        b'"datatype":"INT8","shape":[1],"data":[1]}]}'
    )
    return [request(parameters={"a": 1}), binary, texts, response]


@SETTINGS
@given(
    body=st.binary(max_size=200), json_length=st.one_of(st.none(), st.integers(0, 220))
)
def test_random_bytes_raise_only_api_errors(
    body: bytes, json_length: int | None
) -> None:
    check_only_api_errors(body, json_length)


@SETTINGS
@given(data=st.data())
def test_damaged_bodies_raise_only_api_errors(data: st.DataObject) -> None:
    """Bytes are changed, removed and inserted."""
    body = bytearray(data.draw(st.sampled_from(seeds())))
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(body)))
        tokens = st.sampled_from(
            [
                b"null",
                b"-1",
                b"1e999",
                b"[",
                b"]",
                b"{}",
                b'"',
                b",",
                b"\xff",
                b"2147483648",
                b"",
            ]
        )
        body[start : start + data.draw(st.integers(0, 8))] = data.draw(
            st.one_of(tokens, st.binary(max_size=4))
        )
    check_only_api_errors(
        bytes(body), data.draw(st.one_of(st.none(), st.integers(0, len(body))))
    )


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=4),
        st.just(2**64),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = [
    "name",
    "datatype",
    "shape",
    "data",
    "parameters",
    "id",
    "inputs",
    "outputs",
    "model_name",
    "model_version",
]


@SETTINGS
@given(
    top=st.dictionaries(st.sampled_from(KEYS), anything),
    item=st.dictionaries(st.sampled_from(KEYS), anything),
)
def test_members_of_any_type_raise_only_api_errors(
    top: dict[str, object], item: dict[str, object]
) -> None:
    """Every member may have any JSON value."""
    check_only_api_errors(
        json.dumps({"inputs": [item], "outputs": [item]} | top).encode(), None
    )
    check_only_api_errors(request(item), None)
    check_only_api_errors(
        request({"parameters": item}, outputs=[{"name": "y", "parameters": item}]), None
    )


@SETTINGS
@given(text=st.text(max_size=24), length=st.integers(0, 2**40))
def test_any_header_text_is_a_length_or_refused(text: str, length: int) -> None:
    outcome: int | ErrorCode | None
    try:
        outcome = parse_json_length(text, length)
    except ApiError as error:
        outcome = error.code
    assert outcome is ErrorCode.INVALID_HEADER or (
        isinstance(outcome, int) and 0 <= outcome <= length
    )
