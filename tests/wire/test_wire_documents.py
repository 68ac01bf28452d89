"""Test the limits of JSON bodies, and the exact code of each refusal."""

from __future__ import annotations

import json

import pytest

from pocketserve_wire import ApiError, ErrorCode, limits, strict_json
from wire.wire_bodies import decode, document, refusal, request

MALFORMED = ErrorCode.MALFORMED_JSON
REQUEST = ErrorCode.INVALID_REQUEST
TENSOR = ErrorCode.INVALID_TENSOR
PARAMETER = ErrorCode.INVALID_PARAMETER
PLAIN = request()


def nested(depth: int, *kinds: str) -> bytes:
    """Return a request of that depth, counting the top object."""
    levels = []
    for level in range(depth - 1):
        levels.append(kinds[level % len(kinds)])
    inner = (
        "".join(levels)
        + "1"
        + "".join("]" if level == "[" else "}" for level in reversed(levels))
    )
    return PLAIN[:-1] + f', "extra": {inner}}}'.encode()


DOCUMENTS = {
    "nothing": (b"", MALFORMED),
    "only spaces": (b"   ", MALFORMED),
    "byte order mark": (b"\xef\xbb\xbf" + PLAIN, MALFORMED),
    "not UTF-8": (PLAIN.replace(b'"x"', b'"\xff"'), MALFORMED),
    "UTF-8 cut in a character": (PLAIN[:-1] + b', "a": "\xc3', MALFORMED),
    "surrogates encoded as UTF-8": (
        PLAIN.replace(b'"x"', b'"\xed\xa0\x80"'),
        MALFORMED,
    ),
    "UTF-16": (PLAIN.decode().encode("utf-16-le"), MALFORMED),
    "cut short": (PLAIN[:-1], MALFORMED),
    "trailing spaces": (PLAIN + b" \t\r\n" * 3, None),
    "leading spaces": (b"\n  " + PLAIN, None),
    "trailing garbage": (PLAIN + b"x", MALFORMED),
    "two documents": (PLAIN + PLAIN, MALFORMED),
    "trailing NUL": (PLAIN + b"\0", MALFORMED),
    "trailing form feed": (PLAIN + b"\f", MALFORMED),
    "single quotes": (b"{'inputs': []}", MALFORMED),
    "trailing comma": (b'{"inputs": [],}', MALFORMED),
    "comment": (b'{"inputs": [] /* none */}', MALFORMED),
    "top is an array": (b"[]", MALFORMED),
    "top is a string": (b'"inputs"', MALFORMED),
    "top is null": (b"null", MALFORMED),
    "top is NaN": (b"NaN", MALFORMED),
    "duplicate key": (b'{"inputs": [], "inputs": []}', MALFORMED),
    "duplicate key inside": (
        PLAIN.replace(b'"name": "x"', b'"name": "x", "name": "y"'),
        MALFORMED,
    ),
    "duplicate key, escaped": (
        b'{"id": "a", "\\u0069d": "b", "inputs": []}',
        MALFORMED,
    ),
    "raw control character": (PLAIN.replace(b'"x"', b'"\x01"'), MALFORMED),
    "leading zero": (document("INT32", "[01]"), MALFORMED),
    "plus sign": (document("INT32", "[+1]"), MALFORMED),
    "bare -NaN": (document("FP32", "[-NaN]"), MALFORMED),
    "nan in small letters": (document("FP32", "[nan]"), MALFORMED),
    "5,000 digits": (document("INT64", "[" + "9" * 5000 + "]"), MALFORMED),
    "unknown members": (request(extra={"a": [None]}, model_name="other"), None),
    "escaped and raw text beyond ASCII": (
        PLAIN.replace(b'"x"', '"é\\u00e9\\ud83d\\ude00"'.encode()),
        None,
    ),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_encoding_duplicates_and_syntax_are_checked(case: str) -> None:
    body, code = DOCUMENTS[case]
    assert refusal(body) == code


@pytest.mark.parametrize(
    ("depth", "code"),
    [
        (4, None),
        (99, None),
        (100, None),
        (101, MALFORMED),
        (102, MALFORMED),
        (5000, MALFORMED),
    ],
)
@pytest.mark.parametrize(
    "kinds",
    [
        ("[",),
        ('{"k":',),
        ('{"k":', "["),
        ("[", '{"k":'),
    ],
)
def test_documents_may_be_100_deep(
    depth: int, code: ErrorCode | None, kinds: tuple[str, ...]
) -> None:
    assert refusal(nested(depth, *kinds)) == code


@pytest.mark.parametrize(
    "brackets",
    [
        "[" * 5000,
        "[" * 200_000,
        '{"a":' * 5000,
    ],
)
def test_thousands_of_open_brackets_are_refused(brackets: str) -> None:
    assert refusal(brackets.encode()) == MALFORMED


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        (97, None),
        (98, MALFORMED),
        (900, MALFORMED),
        (5000, MALFORMED),
    ],
)
def test_data_may_fill_the_documents_depth(levels: int, code: ErrorCode | None) -> None:
    """The tensor itself is inside three containers."""
    assert refusal(document("FP32", "[" * levels + "1" + "]" * levels)) == code


def test_wide_documents_are_not_deep() -> None:
    """Only their nesting counts, not the number of brackets."""
    rows = [[[1.0, 2.0]] * 2] * 300
    assert refusal(request({"shape": [1200], "data": rows})) is None


TOO_MANY: dict[str, tuple[bytes, bytes, bytes, int, str]] = {
    "numbers": (
        b"[",
        b"0,",
        b"0]",
        limits.MAX_JSON_SCALARS,
        "8388609 values, the limit is 8388608",
    ),
    "texts": (b"[", b'"",', b'""]', limits.MAX_JSON_STRINGS, "2000001 texts and names"),
    "arrays": (
        b"",
        b"[],",
        b"[]",
        limits.MAX_JSON_CONTAINERS,
        "2000001 arrays and objects",
    ),
}


@pytest.mark.parametrize("case", TOO_MANY)
def test_documents_with_too_many_parts_are_refused(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused before parsing, with the way out.

    One part fewer is parsed.
    """
    parsed: list[int] = []
    monkeypatch.setattr(json, "loads", lambda text, **_: parsed.append(len(text)))
    head, part, tail, maximum, text = TOO_MANY[case]
    strict_json.loads(head + part * (maximum - 1) + tail)
    assert len(parsed) == 1
    with pytest.raises(ApiError, match=f"{text}.*send tensors as binary") as caught:
        strict_json.loads(head + part * maximum + tail)
    assert caught.value.code is MALFORMED
    assert len(parsed) == 1


def test_the_maximum_number_of_values_is_parsed() -> None:
    """The limit allows a colour picture of two megapixels as a flat list."""
    assert len(strict_json.loads(b"[" + b"7," * (6_000_000 - 1) + b"7]")) == 6_000_000


REQUESTS = {
    "id absent": (request(), None),
    "id null": (request(id=None), None),
    "id empty": (request(id=""), None),
    "id of 256 characters": (request(id="é" * 256), None),
    "id of 257 characters": (request(id="x" * 257), REQUEST),
    "id is a number": (request(id=7), REQUEST),
    "parameters null": (request(parameters=None), None),
    "parameters empty": (request(parameters={}), None),
    "parameters is an array": (request(parameters=[]), PARAMETER),
    "parameter null": (request(parameters={"a": None}), PARAMETER),
    "parameter is an object": (request(parameters={"a": {}}), PARAMETER),
    "parameter is an array": (request(parameters={"a": [1]}), PARAMETER),
    "parameter's name of 256": (request(parameters={"a" * 256: 1}), None),
    "parameter's name of 257": (request(parameters={"a" * 257: 1}), PARAMETER),
    "binary_data_output is 1": (
        request(parameters={"binary_data_output": 1}),
        PARAMETER,
    ),
    'binary_data_output is "true"': (
        request(parameters={"binary_data_output": "true"}),
        PARAMETER,
    ),
    "sequence and priority parameters": (
        request(parameters={"sequence_id": 2**64 - 1, "priority": 0}),
        None,
    ),
    "inputs absent": (request(inputs=...), REQUEST),
    "inputs null": (request(inputs=None), REQUEST),
    "inputs is an object": (request(inputs={}), REQUEST),
    "inputs empty": (request(inputs=[]), None),
    "an input is null": (request(inputs=[None]), REQUEST),
    "an input is an array": (request(inputs=[[]]), REQUEST),
    "257 inputs": (request(inputs=[{}] * 257), REQUEST),
    "name absent": (request({"name": ...}), REQUEST),
    "name null": (request({"name": None}), REQUEST),
    "name empty": (request({"name": ""}), REQUEST),
    "name of 256 characters": (request({"name": "n" * 256}), None),
    "name of 4096 characters": (request({"name": "n" * 4096}), None),
    "name of 4097 characters": (request({"name": "n" * 4097}), REQUEST),
    "NUL in a name": (request({"name": "a\0b"}), REQUEST),
    "half a surrogate pair in a name": (request({"name": "a\ud800"}), REQUEST),
    "other half of it": (request({"name": "\udc00"}), REQUEST),
    "duplicate input names": (request(inputs=json.loads(PLAIN)["inputs"] * 2), REQUEST),
    "datatype absent": (request({"datatype": ...}), TENSOR),
    "datatype in small letters": (request({"datatype": "fp32"}), TENSOR),
    "datatype STRING": (request({"datatype": "STRING"}), TENSOR),
    "datatype is a list": (request({"datatype": ["FP32"]}), TENSOR),
    "tensor parameters null": (request({"parameters": None}), None),
    "tensor parameters a string": (request({"parameters": "no"}), PARAMETER),
    "tensor parameter nested": (request({"parameters": {"a": []}}), PARAMETER),
    "outputs null": (request(outputs=None), None),
    "outputs empty": (request(outputs=[]), None),
    "outputs is a string": (request(outputs="y"), REQUEST),
    "an output is a string": (request(outputs=["y"]), REQUEST),
    "an output without a name": (request(outputs=[{}]), REQUEST),
    "NUL in an output's name": (request(outputs=[{"name": "\0"}]), REQUEST),
    "duplicate output names": (
        request(outputs=[{"name": "y"}, {"name": "y"}]),
        REQUEST,
    ),
    "257 outputs": (
        request(outputs=[{"name": str(index)} for index in range(257)]),
        REQUEST,
    ),
    "binary_data is 1": (
        request(outputs=[{"name": "y", "parameters": {"binary_data": 1}}]),
        PARAMETER,
    ),
    "binary_data is null": (
        request(outputs=[{"name": "y", "parameters": {"binary_data": None}}]),
        PARAMETER,
    ),
}
CLASSIFICATIONS = {
    0: None,
    1: None,
    2**31 - 1: None,
    2**31: PARAMETER,
    -1: PARAMETER,
    "3": PARAMETER,
}
CLASSIFICATIONS |= {1.5: PARAMETER, None: PARAMETER}


@pytest.mark.parametrize("case", REQUESTS)
def test_members_are_checked(case: str) -> None:
    """The cases are null and missing members, names, duplicates and parameters."""
    body, code = REQUESTS[case]
    assert refusal(body) == code


@pytest.mark.parametrize("value", [*CLASSIFICATIONS, True])
def test_classification_is_a_non_negative_integer(value: object) -> None:
    """A boolean is refused."""
    body = request(outputs=[{"name": "y", "parameters": {"classification": value}}])
    assert refusal(body) == (PARAMETER if value is True else CLASSIFICATIONS[value])


def test_absent_and_null_members_mean_the_same() -> None:
    """Null parameters, outputs and ids decode like missing ones."""
    empty = decode(request(id=None, parameters=None, outputs=None))
    absent = decode(request())
    assert (
        (empty.id, empty.parameters, empty.outputs)
        == (absent.id, absent.parameters, absent.outputs)
        == (
            "",
            {},
            [],
        )
    )


def test_encoding_flags_are_removed_from_the_parameters() -> None:
    """A model must not see them."""
    asked = [
        {
            "name": "y",
            "parameters": {"binary_data": True, "classification": 2, "own": 1},
        },
        {"name": "z"},
    ]
    got = decode(
        request(parameters={"binary_data_output": True, "own": 2}, outputs=asked)
    )
    assert got.binary_output is True
    assert got.parameters == {"own": 2}
    y, z = got.outputs
    assert y.binary is True
    assert y.classification == 2
    assert y.parameters == {"own": 1}
    assert z.binary is False
    assert z.classification == 0
    assert z.parameters == {}


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"[1]", "an array"),
        (b"3", "a number"),
        (b"false", "a boolean"),
    ],
)
def test_errors_name_the_wrong_type(body: bytes, part: str) -> None:
    """A wrong type at the top has its JSON name."""
    with pytest.raises(ApiError, match=part):
        strict_json.loads_object(body)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b'{"inputs":[],"inputs":[]}', "'inputs'"),
        (b'{"a":\n1,}', "line 2"),
        (request({"datatype": "fp32"}), "FP32"),
        (request({"shape": [3]}), r"inputs\[0\] 'x'.*3 elements.*2"),
        (request(outputs=[{"name": "y"}, {"name": "y"}]), "'y' twice"),
        (b"\xff", "byte 0"),
    ],
)
def test_errors_name_the_position(body: bytes, part: str) -> None:
    """The message contains the key, position or count."""
    with pytest.raises(ApiError, match=part):
        decode(body)
