"""Tensors and outputs of the Open Inference Protocol, in every form."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from typing import Any

import numpy as np
import pytest

from conftest import MODELS, ROOT

LENGTH = "Inference-Header-Content-Length"
FLOWERS = np.array(
    [
        [5.1, 3.5, 1.4],
        [6.2, 2.9, 4.3],
        [7.1, 3.0, 5.9],
    ],
    np.float32,
)


def json_input(
    name: str, datatype: str, values: np.ndarray, **extra: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(values.shape),
        "data": values.tolist(),
        **extra,
    }


def binary_input(name: str, datatype: str, values: np.ndarray) -> dict[str, Any]:
    size = {"binary_data_size": values.nbytes}
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(values.shape),
        "parameters": size,
    }


def infer(
    server,
    model: str,
    *inputs: dict[str, Any],
    raw: bytes = b"",
    headers: dict[str, str] | None = None,
    **rest,
):
    """Send a request.

    ``raw`` follows the JSON, whose length is then announced.
    """
    header = json.dumps({"inputs": list(inputs), **rest}).encode()
    announced = {LENGTH: str(len(header))} if raw else {}
    sent = announced | (headers or {})
    return server.call(
        "POST", f"/v2/models/{model}/infer", data=header + raw, headers=sent
    )


def decode(answer) -> dict[str, np.ndarray]:
    """Return outputs of either form by name."""
    assert answer.status_code == 200, answer.text
    length = int(answer.headers.get(LENGTH, len(answer.content)))
    expected = "application/json"
    if LENGTH in answer.headers:
        expected = "application/octet-stream"
    assert answer.headers["Content-Type"] == expected
    raw = answer.content[length:]
    found = {}
    types = {
        "FP32": "<f4",
        "FP16": "<f2",
        "INT8": "i1",
        "INT64": "<i8",
        "BOOL": "?",
    }
    for output in json.loads(answer.content[:length])["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = np.array(
                output["data"],
                object if output["datatype"] == "BYTES" else types[output["datatype"]],
            )
        else:
            assert "data" not in output
            data = raw[:size]
            raw = raw[size:]
            values = (
                split_texts(data)
                if output["datatype"] == "BYTES"
                else np.frombuffer(data, types[output["datatype"]])
            )
        found[output["name"]] = values.reshape(output["shape"])
    assert raw == b""
    return found


def split_texts(data: bytes) -> np.ndarray:
    texts = []
    while data:
        size = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return np.array(texts, object)


@pytest.fixture(scope="module")
def widths(server) -> np.ndarray:
    """Return the right answer for FLOWERS, computed by the V1 interface."""
    rows = server.call("POST", "/predictions/petals", json=FLOWERS.tolist()).json()[
        "predictions"
    ]
    values = np.array([[row["value"]] for row in rows], np.float32)
    np.testing.assert_allclose(values[0], 0.22656, rtol=1e-5)
    return values


# --- The forms of a request


def test_json_input_and_output(server, widths):
    answer = infer(server, "petals", json_input("features", "FP32", FLOWERS))
    document = answer.json()
    assert {key: document[key] for key in ("model_name", "model_version")} == {
        "model_name": "petals",
        "model_version": "tflite",
    }
    assert "id" not in document
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)
    # FP32 is printed as the double of equal value.
    assert document["outputs"][0]["data"] == widths.reshape(-1).astype(float).tolist()


@pytest.mark.parametrize("nesting", ["flat", "nested", "odd"])
def test_data_may_be_flat_or_nested(server, widths, nesting):
    flat = FLOWERS.reshape(-1).tolist()
    data = {
        "flat": flat,
        "nested": FLOWERS.tolist(),
        "odd": [flat[:1], [[flat[1:4]], flat[4:]]],
    }[nesting]
    answer = infer(
        server, "petals", {**json_input("features", "FP32", FLOWERS), "data": data}
    )
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)


def test_binary_input_and_json_output(server, widths):
    answer = infer(
        server,
        "petals",
        binary_input("features", "FP32", FLOWERS),
        raw=FLOWERS.tobytes(),
    )
    assert LENGTH not in answer.headers
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)


@pytest.mark.parametrize(
    "content_type",
    ["application/octet-stream", "application/json", "text/plain", "image/png", ""],
)
def test_the_length_header_decides_instead_of_the_content_type(
    server, widths, content_type
):
    answer = infer(
        server,
        "petals",
        binary_input("features", "FP32", FLOWERS),
        raw=FLOWERS.tobytes(),
        parameters={"binary_data_output": True},
        headers={"Content-Type": content_type},
    )
    assert LENGTH in answer.headers
    assert int(answer.headers[LENGTH]) % 8 == 0
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)


@pytest.mark.parametrize(
    ("parameters", "binary"),
    [
        ({"binary_data": True}, True),
        ({"binary_data": False}, False),
        ({}, False),
    ],
)
def test_a_requested_output_selects_its_own_form(server, widths, parameters, binary):
    answer = infer(
        server,
        "petals",
        json_input("features", "FP32", FLOWERS),
        outputs=[{"name": "petal_width", "parameters": parameters}],
        parameters={"binary_data_output": True},
    )
    assert (LENGTH in answer.headers) == binary
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)


def test_json_and_binary_may_be_mixed(kit_server):
    a = np.array([1, 2], np.float32)
    b = np.array([10, 20], np.float32)
    answer = infer(
        kit_server,
        "two_inputs",
        json_input("a", "FP32", a),
        binary_input("b", "FP32", b),
        raw=b.tobytes(),
    )
    assert decode(answer)["PartitionedCall:0"].tolist() == [11, 22]
    x = np.array([1, 0, 1, 0], np.float32)
    flag = np.array(True)
    outputs = [
        {"name": "total"},
        {"name": "half", "parameters": {"binary_data": True}},
        {"name": "unset", "parameters": {"binary_data": False}},
        {"name": "whole", "parameters": {"binary_data": True}},
    ]
    answer = infer(
        kit_server,
        "several_outputs",
        binary_input("x", "FP32", x),
        json_input("flag", "BOOL", flag) | {"data": [True]},
        raw=x.tobytes(),
        outputs=outputs,
    )
    found = decode(answer)
    assert {name: (array.shape, array.tolist()) for name, array in found.items()} == {
        "total": ((), 2.0),
        "half": ((4,), [1, 0, 1, 0]),
        "unset": ((), False),
        "whole": ((4,), [1, 0, 1, 0]),
    }


def test_a_raw_body_without_json(server, widths):
    answer = server.call(
        "POST", "/v2/models/petals/infer", data=FLOWERS.tobytes(), headers={LENGTH: "0"}
    )
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)
    assert LENGTH in answer.headers


def test_a_raw_body_for_two_inputs_is_rejected(kit_server, refused):
    answer = kit_server.call(
        "POST", "/v2/models/two_inputs/infer", data=bytes(8), headers={LENGTH: "0"}
    )
    refused(answer, 400, "INVALID_REQUEST")


def test_a_raw_body_of_text_is_one_element(kit_server):
    answer = kit_server.call(
        "POST", "/v2/models/strings/infer", data="größe".encode(), headers={LENGTH: "0"}
    )
    assert decode(answer)["PartitionedCall:0"].tolist() == [["größe"]]


def test_spaces_after_the_json_belong_to_it(server, widths):
    header = (
        json.dumps({"inputs": [binary_input("features", "FP32", FLOWERS)]}).encode()
        + b" " * 5
    )
    answer = server.call(
        "POST",
        "/v2/models/petals/infer",
        data=header + FLOWERS.tobytes(),
        headers={LENGTH: str(len(header))},
    )
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)


def test_no_rows_give_no_rows(kit_server):
    nothing = np.zeros((0, 3), np.float32)
    answer = infer(kit_server, "dynamic_batch", json_input("x", "FP32", nothing))
    assert decode(answer)["PartitionedCall:0"].shape == (0, 2)


def test_texts_of_any_kind(kit_server):
    texts = np.array(["", "größe", "\0", "語" * 1000, '"quoted"'], object)
    document = json_input("text", "BYTES", texts)
    as_json = infer(kit_server, "strings", document)
    as_binary = infer(
        kit_server, "strings", document, parameters={"binary_data_output": True}
    )
    for answer in (as_json, as_binary):
        assert (
            decode(answer)["PartitionedCall:0"].reshape(-1).tolist() == texts.tolist()
        )


def test_bytes_that_are_no_text_are_returned_only_as_binary(kit_server, refused):
    raw = (2).to_bytes(4, "little") + b"\xff\xfe"
    item = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": len(raw)},
    }
    answer = infer(
        kit_server, "strings", item, raw=raw, parameters={"binary_data_output": True}
    )
    assert answer.status_code == 200
    assert answer.content.endswith(raw)
    refused(infer(kit_server, "strings", item, raw=raw), 400, "INVALID_REQUEST")


def test_half_floats_are_returned_only_as_binary(kit_server, refused):
    inputs = [
        json_input("x", "FP32", np.zeros(4, np.float32)),
        {"name": "flag", "datatype": "BOOL", "shape": [], "data": [False]},
    ]
    refused(infer(kit_server, "several_outputs", *inputs), 400, "INVALID_REQUEST")
    answer = infer(
        kit_server, "several_outputs", *inputs, parameters={"binary_data_output": True}
    )
    assert decode(answer)["PartitionedCall:0"].dtype == np.float16


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        None,
    ],
)
def test_non_finite_numbers_pass_in_both_directions(kit_server, value):
    item = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 2],
        "data": [value, 1.5],
    }
    answer = infer(
        kit_server, "two_signatures", item, parameters={"signature_name": "double"}
    )
    (found,) = decode(answer).values()
    np.testing.assert_array_equal(
        found[0], np.array([np.nan if value is None else value, 3.0], np.float32)
    )


# --- Names, ids, parameters


def test_the_id_is_echoed_first(server):
    item = json_input("features", "FP32", FLOWERS)
    for given, echoed in (
        ("42", "42"),
        ("ä\n", "ä\n"),
        ("", None),
        (None, None),
    ):
        document = infer(server, "petals", item, id=given).json()
        assert document.get("id") == echoed
        assert echoed is None or next(iter(document)) == "id"


def test_names_from_the_file_are_accepted_too(server, widths):
    metadata = server.call("GET", "/v1/models/petals/metadata").json()["metadata"][
        "signature_def"
    ]["signature_def"]
    own = metadata["serving_default"]["inputs"]["features"]["name"]
    assert own != "features"
    answer = infer(server, "petals", json_input(own, "FP32", FLOWERS))
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)


def test_one_input_under_two_names_is_rejected(kit_server, refused):
    x = np.zeros((1, 3), np.float32)
    answer = infer(
        kit_server,
        "dynamic_batch",
        json_input("x", "FP32", x),
        json_input("serving_default_x:0", "FP32", x),
    )
    assert "twice" in refused(answer, 400, "INVALID_REQUEST")


def test_only_requested_outputs_are_returned_under_the_requested_names(kit_server):
    inputs = [
        json_input("x", "FP32", np.array([1, 0, 1, 0], np.float32)),
        {"name": "flag", "datatype": "BOOL", "shape": [], "data": [False]},
    ]
    asked = [
        {"name": "where"},
        {"name": "total"},
        {"name": "PartitionedCall:1"},
    ]
    answer = infer(kit_server, "several_outputs", *inputs, outputs=asked)
    assert [output["name"] for output in answer.json()["outputs"]] == [
        "where",
        "total",
        "PartitionedCall:1",
    ]
    assert decode(answer)["where"].tolist() == [[0], [2]]


def test_an_unknown_output_is_named(server, refused):
    answer = infer(
        server,
        "petals",
        json_input("features", "FP32", FLOWERS),
        outputs=[{"name": "width"}],
    )
    assert "'width'" in refused(answer, 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "members",
    [
        {"outputs": []},
        {"outputs": None},
        {"parameters": None},
        {"unknown": {}},
    ],
)
def test_unknown_members_are_ignored(server, widths, members):
    answer = infer(server, "petals", json_input("features", "FP32", FLOWERS), **members)
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)


def test_a_named_signature_has_its_own_tensors(kit_server, refused):
    a = np.array([5, 7], np.float32)
    b = np.array([1, 2], np.float32)
    inputs = [json_input("a", "FP32", a), json_input("b", "FP32", b)]
    answer = infer(
        kit_server, "two_signatures", *inputs, parameters={"signature_name": "subtract"}
    )
    assert decode(answer)["difference"].tolist() == [4, 5]
    doubled = infer(
        kit_server,
        "two_signatures",
        json_input("x", "FP32", a[None]),
        parameters={"signature_name": "double"},
    )
    assert decode(doubled)["twice"].tolist() == [[10, 14]]
    default = infer(
        kit_server, "two_signatures", json_input("double_x:0", "FP32", a[None])
    )
    assert decode(default)["PartitionedCall:0"].tolist() == [[10, 14]]
    unknown = infer(
        kit_server, "two_signatures", *inputs, parameters={"signature_name": "halve"}
    )
    text = refused(unknown, 400, "INVALID_PARAMETER")
    assert "unknown signature_name 'halve'; the model has 'double', 'subtract'" in text


@pytest.mark.parametrize("version", ["tflite", "tflite-int8", "0"])
def test_a_version_in_the_path_is_used(server, version):
    image = np.zeros((1, 8, 8, 1), np.float32)
    answer = server.call(
        "POST",
        f"/v2/models/digits/versions/{version}/infer",
        data=json.dumps({"inputs": [json_input("image", "FP32", image)]}),
    )
    assert answer.json()["model_version"] == ("tflite" if version == "0" else version)


# --- Batches and classification


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    """Return the ten sample pictures as the model takes them: light ink on dark, 0 to
    1.
    """
    image = pytest.importorskip("PIL.Image")
    rows = []
    for digit in range(10):
        with image.open(MODELS / "digits" / "samples" / f"{digit}.png") as picture:
            sized = picture.convert("L").resize((8, 8), image.Resampling.BILINEAR)
            rows.append(np.asarray(sized, np.float32) / 255)
    return np.stack(rows)[..., None]


def test_a_batch_equals_single_requests(server, digits):
    together = decode(infer(server, "digits", json_input("image", "FP32", digits[:5])))[
        "scores"
    ]
    assert together.shape == (5, 10)
    assert together.argmax(axis=1).tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(together.sum(axis=1), 1, rtol=1e-4)
    for row, image in zip(together, digits[:5], strict=True):
        alone = decode(
            infer(server, "digits", json_input("image", "FP32", image[None]))
        )["scores"]
        np.testing.assert_allclose(alone[0], row, rtol=1e-3, atol=1e-5)


def classify(
    server, model: str, item: dict[str, Any], output: str, count: int, **parameters: Any
) -> np.ndarray:
    asked = [{"name": output, "parameters": {"classification": count, **parameters}}]
    answer = infer(server, model, item, outputs=asked)
    return decode(answer)[output]


@pytest.mark.parametrize("binary", [False, True])
def test_classification_returns_the_best_classes_of_every_row(server, digits, binary):
    item = json_input("image", "FP32", digits[:3])
    scores = decode(infer(server, "digits", item))["scores"]
    classes = classify(
        server,
        "digits",
        item,
        "scores",
        2,
        binary_data=binary,
    )
    assert classes.shape == (3, 2)
    for row, texts in zip(scores, classes.tolist(), strict=True):
        best = np.argsort(-row, kind="stable")[:2]
        assert texts == [f"{row[index]:.6f}:{index}:{index}" for index in best]


def test_labels_of_a_model_without_a_task(new_server, tmp_path):
    folder = tmp_path / "models" / "plain"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "runtimes" / "data" / "dynamic_batch.tflite", folder)
    served = new_server(folder.parent)
    described = served.call("GET", "/v2/models/plain").json()
    (given,), (output,) = described["inputs"], described["outputs"]
    count = given["shape"][-1]
    (folder / "labels.txt").write_text(
        "".join(f"class {index}\n" for index in range(32))
    )
    served.call("POST", "/v2/repository/models/plain/load")
    item = {
        "name": given["name"],
        "datatype": "FP32",
        "shape": [1, count],
        "data": [1] * count,
    }
    ((text,),) = classify(served, "plain", item, output["name"], 1).tolist()
    value, index, label = text.split(":")
    assert float(value)
    assert label == f"class {index}"


def test_a_class_count_above_the_maximum_returns_all_classes(server, digits):
    classes = classify(
        server, "digits", json_input("image", "FP32", digits[:1]), "scores", 1000
    )
    assert classes.shape == (1, 10)
    assert sorted(text.split(":")[1] for text in classes[0]) == [
        str(index) for index in range(10)
    ]


def test_a_class_count_of_zero_returns_the_tensor(server, digits):
    item = json_input("image", "FP32", digits[:1])
    assert classify(server, "digits", item, "scores", 0).dtype == np.float32


def test_equal_scores_keep_their_order_and_nan_is_last(kit_server):
    item = {
        "name": "x",
        "datatype": "FP32",
        "shape": [3, 2],
        "data": [1, 1, 1, 2, None, -1],
    }
    answer = infer(
        kit_server,
        "two_signatures",
        item,
        outputs=[{"name": "twice", "parameters": {"classification": 2}}],
        parameters={"signature_name": "double"},
    )
    assert decode(answer)["twice"].tolist() == [
        ["2.000000:0", "2.000000:1"],
        ["4.000000:1", "2.000000:0"],
        ["-2.000000:1", "nan:0"],
    ]


def test_classes_of_an_unbatched_output_are_one_row(kit_server):
    inputs = [
        json_input("x", "FP32", np.array([3, 1, 2, 3], np.float32)),
        {"name": "flag", "datatype": "BOOL", "shape": [], "data": [False]},
    ]
    answer = infer(
        kit_server,
        "several_outputs",
        *inputs,
        outputs=[{"name": "whole", "parameters": {"classification": 3}}],
    )
    assert decode(answer)["whole"].tolist() == ["3:0", "3:3", "2:2"]


def test_classes_of_texts_are_rejected(kit_server, refused):
    item = json_input("text", "BYTES", np.array(["a"], object))
    answer = infer(
        kit_server,
        "strings",
        item,
        outputs=[{"name": "column", "parameters": {"classification": 1}}],
    )
    refused(answer, 400, "INVALID_TENSOR")


# --- Quantised models


def test_a_quantised_model_converts_real_numbers(kit_server):
    x = np.array([[0.5, -0.25, 0.75], [0.0, 0.1, -0.9]], np.float32)
    answer = infer(kit_server, "int8_io", json_input("x", "FP32", x))
    assert answer.json()["outputs"][0]["datatype"] == "FP32"
    (found,) = decode(answer).values()
    exact = x @ np.array(
        [
            [1.0, -1.0],
            [2.0, 0.5],
            [-0.5, 0.25],
        ],
        np.float32,
    )
    np.testing.assert_allclose(found, exact, atol=0.05)


def test_a_quantised_model_accepts_its_own_integers(kit_server):
    metadata = kit_server.call("GET", "/v2/models/int8_io").json()
    scales = [metadata[side][0]["parameters"] for side in ("inputs", "outputs")]
    stored = np.array([[10, -20, 30]], np.int8)
    answer = infer(kit_server, "int8_io", json_input("x", "INT8", stored))
    (found,) = decode(answer).values()
    assert answer.json()["outputs"][0]["datatype"] == "INT8"
    real = (stored - scales[0]["quantization_zero_point"]) * scales[0][
        "quantization_scale"
    ]
    back = decode(
        infer(kit_server, "int8_io", json_input("x", "FP32", real.astype(np.float32)))
    )
    (reals,) = back.values()
    expected = (found.astype(float) - scales[1]["quantization_zero_point"]) * scales[1][
        "quantization_scale"
    ]
    np.testing.assert_allclose(reals, expected, rtol=1e-5)


def test_another_integer_type_is_rejected(kit_server, refused):
    answer = infer(
        kit_server, "int8_io", json_input("x", "UINT8", np.zeros((1, 3), np.uint8))
    )
    assert "FP32, which is quantised for you" in refused(answer, 400, "INVALID_TENSOR")


# --- Errors that only the model itself detects


def test_an_input_that_the_model_rejects_is_a_client_error(kit_server, refused):
    inputs = [
        json_input("a", "FP32", np.zeros(2, np.float32)),
        json_input("b", "FP32", np.zeros(3, np.float32)),
    ]
    refused(infer(kit_server, "two_inputs", *inputs), 400, "INVALID_TENSOR")
    inputs[1] = json_input("b", "FP32", np.ones(2, np.float32))
    assert decode(infer(kit_server, "two_inputs", *inputs))[
        "PartitionedCall:0"
    ].tolist() == [1, 1]


# --- Compression


CODINGS = [
    (None, None),
    ("", None),
    ("gzip", "gzip"),
    ("GZIP", "gzip"),
    ("deflate", "deflate"),
    ("gzip;q=0.5", "gzip"),
    ("gzip;q=0", None),
    ("gzip, deflate", None),
    ("gzip, deflate, br", None),
    ("identity", None),
    ("br", None),
    ("*", None),
    (",", None),
]
"""Values of Accept-Encoding, and the coding of the answer."""

DECODERS = {
    None: bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


@pytest.mark.parametrize(("accepted", "coding"), CODINGS)
@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_is_compressed_on_request(wire, widths, accepted, coding, binary):
    request = {
        "inputs": [json_input("features", "FP32", FLOWERS)],
        "parameters": {"binary_data_output": binary},
    }
    headers = ["Connection: close"]
    if accepted is not None:
        headers.append(f"Accept-Encoding: {accepted}")
    body = json.dumps(request).encode()
    path = "/v2/models/petals/infer"
    answer = wire.one(wire.write("POST", path, *headers, body=body))
    assert answer.status == 200
    assert answer.headers.get("content-encoding") == coding
    assert answer.headers["vary"] == "Accept-Encoding"
    plain = DECODERS[coding](answer.body)
    if binary:
        # the length is that of the JSON before compression
        json_length = int(answer.headers[LENGTH.lower()])
        assert plain[json_length:] == widths.tobytes()
    else:
        expected = widths.reshape(-1).astype(float).tolist()
        assert json.loads(plain)["outputs"][0]["data"] == expected


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/models/petals", "/v2/models/stats", "/nothing", "/metrics"]
)
def test_only_inference_answers_are_compressed(wire, path):
    answer = wire.one(
        wire.write("GET", path, "Connection: close", "Accept-Encoding: gzip")
    )
    assert "content-encoding" not in answer.headers


ENCODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}


@pytest.mark.parametrize("coding", ENCODERS)
def test_a_compressed_request_is_inflated(server, widths, coding):
    header = json.dumps(
        {"inputs": [binary_input("features", "FP32", FLOWERS)]}
    ).encode()
    answer = server.call(
        "POST",
        "/v2/models/petals/infer",
        data=ENCODERS[coding](header + FLOWERS.tobytes()),
        headers={"Content-Encoding": coding, LENGTH: str(len(header))},
    )
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)


def test_a_gzip_file_of_several_members_is_one_body(server, widths):
    body = json.dumps({"inputs": [json_input("features", "FP32", FLOWERS)]}).encode()
    parts = [
        body[:10],
        b"",
        body[10:50],
        body[50:],
    ]
    answer = server.call(
        "POST",
        "/v2/models/petals/infer",
        data=b"".join(gzip.compress(part) for part in parts),
        headers={"Content-Encoding": "gzip"},
    )
    np.testing.assert_array_equal(decode(answer)["petal_width"], widths)
