"""Each invalid inference request is rejected with a code, and the server still answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

FLOWER = [5.1, 3.5, 1.4]


@pytest.fixture(autouse=True)
def _still_answers(server):
    yield
    answer = server.call("POST", "/v2/models/petals/infer", data=request())
    assert answer.status_code == 200


def tensor(**changes: Any) -> dict[str, Any]:
    """Return a valid input with some members changed; None removes a member."""
    good = {
        "name": "features",
        "datatype": "FP32",
        "shape": [1, 3],
        "data": FLOWER,
    }
    return {
        key: value for key, value in {**good, **changes}.items() if value is not None
    }


def request(*inputs: Any, **members: Any) -> str:
    return json.dumps({"inputs": list(inputs) or [tensor()], **members})


def output(name: object = "petal_width", **parameters: Any) -> list[Any]:
    return [{"name": name, "parameters": parameters}]


MALFORMED = {
    "empty": b"",
    "cut short": b'{"inputs": [',
    "not JSON": b"hello",
    "not an object": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "not UTF-8": b'{"id": "\xff"}',
    "UTF-16": '{"inputs": []}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "more behind it": request().encode() + b"}",
    "a NUL behind it": request().encode() + b"\0",
    "duplicate key": b'{"id": "a", "id": "b", "inputs": []}',
    "duplicate key deep inside": b'{"inputs": [{"name": "x", "name": "y"}]}',
    "101 deep": b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}",
    "100,000 deep": b'{"a": ' + b"[" * 100_000,
    "100,000 objects deep": b'{"a":' * 100_000,
    "a number of 5,000 digits": b'{"inputs": [' + b"9" * 5000 + b"]}",
    "single quotes": b"{'inputs': []}",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_body_that_is_no_json_object_is_rejected(server, refused, body):
    refused(
        server.call("POST", "/v2/models/petals/infer", data=body), 400, "MALFORMED_JSON"
    )


FAULTS: dict[str, tuple[str, str]] = {
    "no inputs": ("{}", "INVALID_REQUEST"),
    "inputs null": ('{"inputs": null}', "INVALID_REQUEST"),
    "inputs an object": ('{"inputs": {}}', "INVALID_REQUEST"),
    "inputs empty": ('{"inputs": []}', "INVALID_REQUEST"),
    "an input is a number": (request(7), "INVALID_REQUEST"),
    "no name": (request(tensor(name=None)), "INVALID_REQUEST"),
    "empty name": (request(tensor(name="")), "INVALID_REQUEST"),
    "NUL in a name": (request(tensor(name="a\0b")), "INVALID_REQUEST"),
    "half a surrogate pair in a name": (request(tensor(name="\ud800")), "INVALID_REQUEST"),
    "name of 4097 characters": (request(tensor(name="x" * 4097)), "INVALID_REQUEST"),
    "unknown input": (request(tensor(name="petals")), "INVALID_REQUEST"),
    "the same input twice": (request(tensor(), tensor()), "INVALID_REQUEST"),
    "one input under two names": (
        request(tensor(), tensor(name="serving_default_features:0")),
        "INVALID_REQUEST",
    ),
    "257 inputs": (request(*[tensor(name=f"x{n}") for n in range(257)]), "INVALID_REQUEST"),
    "id a number": (request(id=7), "INVALID_REQUEST"),
    "id of 257 characters": (request(id="x" * 257), "INVALID_REQUEST"),
    "outputs an object": (request(outputs={}), "INVALID_REQUEST"),
    "unknown output": (request(outputs=output("nothing")), "INVALID_REQUEST"),
    "output twice": (request(outputs=output() + output()), "INVALID_REQUEST"),
    "output without a name": (request(outputs=[{}]), "INVALID_REQUEST"),
    "no datatype": (request(tensor(datatype=None)), "INVALID_TENSOR"),
    "datatype in lower case": (request(tensor(datatype="fp32")), "INVALID_TENSOR"),
    "datatype a number": (request(tensor(datatype=32)), "INVALID_TENSOR"),
    "datatype of another width": (request(tensor(datatype="FP64")), "INVALID_TENSOR"),
    "integers for a float model": (request(tensor(datatype="INT32", data=[5, 3, 1])), "INVALID_TENSOR"),
    "FP16 as JSON": (request(tensor(datatype="FP16")), "INVALID_TENSOR"),
    "no shape": (request(tensor(shape=None)), "INVALID_TENSOR"),
    "shape a number": (request(tensor(shape=3)), "INVALID_TENSOR"),
    "shape of texts": (request(tensor(shape=["1", "3"])), "INVALID_TENSOR"),
    "shape of fractions": (request(tensor(shape=[1.0, 3])), "INVALID_TENSOR"),
    "shape of booleans": (request(tensor(shape=[True, 3])), "INVALID_TENSOR"),
    "negative dimension": (request(tensor(shape=[-1, 3])), "INVALID_TENSOR"),
    "shape beyond every memory": (request(tensor(shape=[2**40, 2**40])), "INVALID_TENSOR"),
    "2**63 rows of nothing": (request(tensor(shape=[2**63, 0], data=[])), "INVALID_TENSOR"),
    "33 dimensions": (request(tensor(shape=[1] * 32 + [3])), "INVALID_TENSOR"),
    "wrong rank": (request(tensor(shape=[3])), "INVALID_TENSOR"),
    "wrong width": (request(tensor(shape=[1, 4], data=[1, 2, 3, 4])), "INVALID_TENSOR"),
    "too few elements": (request(tensor(data=[1, 2])), "INVALID_TENSOR"),
    "too many elements": (request(tensor(data=[1, 2, 3, 4])), "INVALID_TENSOR"),
    "data a number": (request(tensor(data=7)), "INVALID_TENSOR"),
    "no data": (request(tensor(data=None)), "INVALID_TENSOR"),
    "a text among numbers": (request(tensor(data=[1, "2", 3])), "INVALID_TENSOR"),
    "a boolean among numbers": (request(tensor(data=[1, True, 3])), "INVALID_TENSOR"),
    "an object among numbers": (request(tensor(data=[1, {}, 3])), "INVALID_TENSOR"),
    "a number too large for FP32": (request(tensor(data=[1, 1e300, 3])), "INVALID_TENSOR"),
    "an integer too large for FP32": (request(tensor(data=[1, 10**400, 3])), "INVALID_TENSOR"),
    "NaN for an integer": (request(tensor(datatype="INT32", data=[1, float("nan"), 3])), "INVALID_TENSOR"),
    "null for an integer": ('{"inputs": [{"name": "features", "datatype": "INT32", "shape": [1], "data": [null]}]}',
                            "INVALID_TENSOR"),
    "300 for UINT8": (request(tensor(datatype="UINT8", data=[1, 300, 3])), "INVALID_TENSOR"),
    "-1 for UINT8": (request(tensor(datatype="UINT8", data=[1, -1, 3])), "INVALID_TENSOR"),
    "1.0 for INT32": (request(tensor(datatype="INT32", data=[1, 1.0, 3])), "INVALID_TENSOR"),
    "2**63 for INT64": (request(tensor(datatype="INT64", data=[1, 2**63, 3])), "INVALID_TENSOR"),
    "1 for BOOL": (request(tensor(datatype="BOOL", data=[1, 0, 1])), "INVALID_TENSOR"),
    "parameters a list": (request(parameters=[]), "INVALID_PARAMETER"),
    "a parameter is an object": (request(parameters={"a": {}}), "INVALID_PARAMETER"),
    "a parameter is null": (request(parameters={"a": None}), "INVALID_PARAMETER"),
    "a parameter's name is long": (request(parameters={"x" * 257: 1}), "INVALID_PARAMETER"),
    "an input's parameters a text": (request(tensor(parameters="x")), "INVALID_PARAMETER"),
    "binary_data_output a text": (request(parameters={"binary_data_output": "yes"}), "INVALID_PARAMETER"),
    "binary_data a number": (request(outputs=output(binary_data=1)), "INVALID_PARAMETER"),
    "classification negative": (request(outputs=output(classification=-1)), "INVALID_PARAMETER"),
    "classification a text": (request(outputs=output(classification="3")), "INVALID_PARAMETER"),
    "classification true": (request(outputs=output(classification=True)), "INVALID_PARAMETER"),
    "timeout negative": (request(parameters={"timeout": -1}), "INVALID_PARAMETER"),
    "timeout a text": (request(parameters={"timeout": "1"}), "INVALID_PARAMETER"),
    "timeout a fraction": (request(parameters={"timeout": 1.5}), "INVALID_PARAMETER"),
    "timeout of 146,000 years": (request(parameters={"timeout": 2**62}), "INVALID_PARAMETER"),
    "unknown signature": (request(parameters={"signature_name": "nothing"}), "INVALID_PARAMETER"),
    "signature a number": (request(parameters={"signature_name": 7}), "INVALID_PARAMETER"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "code"), FAULTS.values(), ids=FAULTS)
def test_an_invalid_request_is_rejected_with_its_code(server, refused, body, code):
    refused(server.call("POST", "/v2/models/petals/infer", data=body), 400, code)


ROW = np.array([FLOWER], np.float32).tobytes()


def binary(
    raw: bytes, json_length: object = None, **changes: Any
) -> tuple[bytes, dict[str, str]]:
    """Return a request with binary input after the JSON."""
    parameters = {"binary_data_size": changes.pop("size", len(raw))}
    header = request(
        tensor(
            **{
                "data": None,
                "parameters": parameters,
                **changes,
            }
        )
    ).encode()
    length = json_length
    if json_length is None:
        length = len(header)
    return header + raw, {"Inference-Header-Content-Length": str(length)}


BINARY_FAULTS: dict[str, tuple[tuple[bytes, dict[str, str]], str]] = {
    "one byte short": (binary(ROW[:-1]), "INVALID_TENSOR"),
    "one element short": (binary(ROW[:-4]), "INVALID_TENSOR"),
    "one element surplus": (binary(ROW + ROW[:4]), "INVALID_TENSOR"),
    "bytes behind the last tensor": (binary(ROW + b"x", size=12), "INVALID_REQUEST"),
    "size beyond the body": (binary(ROW, size=13), "INVALID_TENSOR"),
    "size beyond every memory": (binary(ROW, size=2**62), "INVALID_TENSOR"),
    "negative size": (binary(ROW, size=-12), "INVALID_TENSOR"),
    "size a text": (binary(ROW, size="12"), "INVALID_TENSOR"),
    "size true": (binary(b"1", size=True), "INVALID_TENSOR"),
    "both forms of data": (binary(ROW, data=FLOWER), "INVALID_TENSOR"),
    "BOOL bytes other than 0 and 1": (
        binary(b"\0\1\2", datatype="BOOL"),
        "INVALID_TENSOR",
    ),
    "BYTES that say more than there is": (
        binary(b"\xff\xff\xff\xff", datatype="BYTES", shape=[1]),
        "INVALID_TENSOR",
    ),
    "JSON cut short by its length": (binary(ROW, json_length=10), "MALFORMED_JSON"),
    "JSON length inside the tensor": (
        binary(ROW, json_length=len(binary(ROW)[0])),
        "MALFORMED_JSON",
    ),
    "JSON length outside the body": (binary(ROW, json_length=10_000), "INVALID_HEADER"),
    "JSON length one too large": (
        binary(ROW, json_length=len(binary(ROW)[0]) + 1),
        "INVALID_HEADER",
    ),
    "JSON length negative": (binary(ROW, json_length=-1), "INVALID_HEADER"),
    "JSON length a word": (binary(ROW, json_length="all"), "INVALID_HEADER"),
    "JSON length empty": (binary(ROW, json_length=""), "INVALID_HEADER"),
    "JSON length signed": (binary(ROW, json_length="+5"), "INVALID_HEADER"),
    "JSON length hexadecimal": (binary(ROW, json_length="0x10"), "INVALID_HEADER"),
    "JSON length of 40 digits": (binary(ROW, json_length="1" * 40), "INVALID_HEADER"),
    "JSON length given twice": (binary(ROW, json_length="5, 5"), "INVALID_HEADER"),
    "raw body of a broken row": (binary(ROW, json_length=0), "INVALID_TENSOR"),
    "no JSON length at all": ((binary(ROW)[0], {}), "MALFORMED_JSON"),
}


@pytest.mark.parametrize(("sent", "code"), BINARY_FAULTS.values(), ids=BINARY_FAULTS)
def test_invalid_binary_data_is_rejected_with_its_code(server, refused, sent, code):
    body, headers = sent
    refused(
        server.call("POST", "/v2/models/petals/infer", data=body, headers=headers),
        400,
        code,
    )


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v2/models/nothing", "MODEL_NOT_FOUND"),
        ("/v2/models/nothing/ready", "MODEL_NOT_FOUND"),
        ("/v2/models/nothing/config", "MODEL_NOT_FOUND"),
        ("/v2/models/nothing/stats", "MODEL_NOT_FOUND"),
        ("/v2/models/nothing/versions/1", "MODEL_NOT_FOUND"),
        ("/v2/models/petals/versions/9", "VERSION_NOT_FOUND"),
        ("/v2/models/petals/versions/9/ready", "VERSION_NOT_FOUND"),
        ("/v2/models/petals/versions/9/config", "VERSION_NOT_FOUND"),
        ("/v2/models/petals/versions/9/stats", "VERSION_NOT_FOUND"),
        ("/v1/models/nothing", "MODEL_NOT_FOUND"),
        ("/v1/models/nothing/metadata", "MODEL_NOT_FOUND"),
        ("/v1/models/petals/versions/9", "VERSION_NOT_FOUND"),
    ],
)
def test_missing_models_are_404_with_the_message_of_triton(server, refused, path, code):
    assert refused(server.call("GET", path), 404, code).startswith(
        "Request for unknown model: "
    )


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v2/models/nothing/infer", "MODEL_NOT_FOUND"),
        ("/v2/models/petals/versions/9/infer", "VERSION_NOT_FOUND"),
        ("/v1/models/nothing:predict", "MODEL_NOT_FOUND"),
        ("/v1/models/petals/versions/9:predict", "VERSION_NOT_FOUND"),
        ("/predictions/nothing", "MODEL_NOT_FOUND"),
        ("/predictions/petals?version=9", "VERSION_NOT_FOUND"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"{broken", b"{}"])
def test_an_unknown_model_is_reported_before_the_body_is_checked(
    server, refused, path, code, body
):
    refused(server.call("POST", path, data=body), 404, code)
