"""The REST API of TensorFlow Serving, combined with KServe V1."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

from pocketserve.api.tfserving import _to_values
from pocketserve_wire import Tensor

FLOWERS = [[5.1, 3.5, 1.4], [6.2, 2.9, 4.3]]


@pytest.fixture(scope="module")
def widths(server) -> list[float]:
    rows = server.call("POST", "/predictions/petals", json=FLOWERS).json()[
        "predictions"
    ]
    return [row["value"] for row in rows]


def predict(server, model: str, body: Any, version: str = "") -> Any:
    path = f"/v1/models/{model}{f'/versions/{version}' if version else ''}:predict"
    return server.call(
        "POST", path, data=body if isinstance(body, str | bytes) else json.dumps(body)
    )


def column(values: list[float]) -> list[list[Any]]:
    return [[pytest.approx(value, rel=1e-6)] for value in values]


def test_status(server):
    document = server.call("GET", "/v1/models/digits").json()
    assert document["name"] == "digits"
    assert document["ready"] is True
    states = {one["version"]: one for one in document["model_version_status"]}
    assert states["tflite"] == {
        "version": "tflite",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    one = server.call("GET", "/v1/models/digits/versions/tflite-int8").json()
    assert [status["version"] for status in one["model_version_status"]] == [
        "tflite-int8"
    ]


def test_metadata(server):
    document = server.call("GET", "/v1/models/petals/metadata").json()
    assert document["model_spec"] == {
        "name": "petals",
        "signature_name": "",
        "version": "tflite",
    }
    signature = document["metadata"]["signature_def"]["signature_def"][
        "serving_default"
    ]
    assert signature["method_name"] == "tensorflow/serving/predict"
    info = signature["inputs"]["features"]
    assert info["dtype"] == "DT_FLOAT"
    assert info["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}, {"size": "3", "name": ""}],
        "unknown_rank": False,
    }
    assert list(signature["outputs"]) == ["petal_width"]
    version = server.call("GET", "/v1/models/petals/versions/tflite/metadata").json()
    assert version == document


def test_metadata_lists_every_signature(kit_server):
    document = kit_server.call("GET", "/v1/models/two_signatures/metadata").json()
    signatures = document["metadata"]["signature_def"]["signature_def"]
    assert {name: sorted(one["inputs"]) for name, one in signatures.items()} == {
        "serving_default": ["double_x:0"],
        "double": ["x"],
        "subtract": ["a", "b"],
    }
    types = kit_server.call("GET", "/v1/models/several_outputs/metadata").json()
    outputs = types["metadata"]["signature_def"]["signature_def"]["serving_default"][
        "outputs"
    ]
    assert {info["dtype"] for info in outputs.values()} == {
        "DT_INT64",
        "DT_FLOAT",
        "DT_HALF",
        "DT_BOOL",
    }
    texts = kit_server.call("GET", "/v1/models/strings/metadata").json()
    inputs = texts["metadata"]["signature_def"]["signature_def"]["serving_default"][
        "inputs"
    ]
    assert {info["dtype"] for info in inputs.values()} == {"DT_STRING"}


@pytest.mark.parametrize(
    "body",
    [
        {"instances": FLOWERS},
        {"instances": [{"features": row} for row in FLOWERS]},
        {"instances": FLOWERS, "signature_name": "serving_default"},
        {"instances": FLOWERS, "signature_name": "", "more": 1},
    ],
)
def test_row_format(server, widths, body):
    answer = predict(server, "petals", body)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == {"predictions": column(widths)}


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": FLOWERS},
        {"inputs": {"features": FLOWERS, "more": 1}},
    ],
)
def test_column_format(server, widths, body):
    assert predict(server, "petals", body).json() == {"outputs": column(widths)}


@pytest.mark.parametrize("version", ["tflite", "0"])
def test_the_path_selects_a_version(server, widths, version):
    assert predict(server, "petals", {"inputs": FLOWERS}, version).json() == {
        "outputs": column(widths)
    }


def test_floats_are_printed_in_the_shortest_exact_form(kit_server):
    sent = [0.1, 3.0, 1e20, 1e-7, 16777217.0, -0.0, 1 / 3, 3.4028235e38 / 4]
    rows = [[value, -value] for value in sent]
    answer = predict(kit_server, "two_signatures", {"instances": rows})
    printed = re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", answer.text.partition(":")[2])
    expected = [
        np.float32(np.float32(value) * np.float32(2)) for row in rows for value in row
    ]
    assert [np.float32(text) for text in printed] == expected
    assert printed[:4] == ["0.2", "-0.2", "6.0", "-6.0"]
    assert all("." in text or "e" in text for text in printed)
    assert all(
        len(text) <= len(str(value)) + 2
        for text, value in zip(printed, expected, strict=True)
    )


def test_many_floats_need_little_more_memory_than_their_list():
    values = np.linspace(-1e6, 1e6, 400_000, dtype=np.float32)
    tracemalloc.start()
    try:
        found = _to_values(
            Tensor("y", "FP32", (2, 200_000), memoryview(values.tobytes()))
        )
        maximum = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert maximum < 60 * values.size
    assert (np.array(found, np.float32) == values.reshape(2, -1)).all()
    assert repr(found[0][1]) == str(values[1])


def test_non_finite_numbers_are_returned_as_tokens(kit_server):
    answer = predict(
        kit_server, "two_signatures", '{"instances": [[NaN, Infinity], [-Infinity, 1]]}'
    )
    assert answer.text == '{"predictions":[[NaN,Infinity],[-Infinity,2.0]]}\n'


def test_select_a_signature_by_name(kit_server):
    body = {"signature_name": "subtract", "inputs": {"a": [5, 7], "b": [1, 2]}}
    assert predict(kit_server, "two_signatures", body).json() == {"outputs": [4.0, 5.0]}


def test_several_outputs_are_an_object(kit_server):
    body = {
        "signature_name": "serving_default",
        "inputs": {"serving_default_text:0": ["a", "ä"]},
    }
    outputs = predict(kit_server, "strings", body).json()["outputs"]
    assert outputs == {"PartitionedCall:0": [["a"], ["ä"]], "PartitionedCall:1": ["a"]}


def test_bytes_are_sent_as_base64(kit_server):
    outputs = predict(
        kit_server, "strings", {"inputs": [{"b64": "Z3LDtsOfZQ=="}, "x"]}
    ).json()["outputs"]
    assert [["größe"], ["x"]] in outputs.values()


def test_outputs_without_a_row_per_instance_are_rejected(kit_server, refused):
    answer = predict(kit_server, "strings", {"instances": ["a", "b"]})
    assert "use 'inputs'" in refused(answer, 400, "INVALID_REQUEST")


def test_several_inputs_are_named_in_every_row(kit_server, refused):
    rows = [
        {"serving_default_a:0": value, "serving_default_b:0": 10 * value}
        for value in (1.0, 2.0)
    ]
    assert predict(kit_server, "two_inputs", {"instances": rows}).json() == {
        "predictions": [11.0, 22.0]
    }
    for broken in (
        [1.0, 2.0],
        [rows[0], {"serving_default_a:0": 1.0}],
        [rows[0], 7],
        [{**rows[0], "more": 1}],
    ):
        refused(
            predict(kit_server, "two_inputs", {"instances": broken}),
            400,
            "INVALID_REQUEST",
        )
    refused(
        predict(kit_server, "two_inputs", {"inputs": {"serving_default_a:0": [1]}}),
        400,
        "INVALID_REQUEST",
    )
    refused(predict(kit_server, "two_inputs", {"inputs": [1]}), 400, "INVALID_REQUEST")


def test_a_quantised_model_converts_real_numbers(kit_server):
    (row,) = predict(kit_server, "int8_io", {"instances": [[0.5, -0.25, 0.75]]}).json()[
        "predictions"
    ]
    assert row == pytest.approx([-0.375, -0.4375], abs=0.05)


def test_half_floats_are_not_implemented(kit_server, refused):
    body = {
        "inputs": {"serving_default_x:0": [1, 0, 1, 0], "serving_default_flag:0": True}
    }
    refused(predict(kit_server, "several_outputs", body), 501, "NOT_IMPLEMENTED")


FAULTS: dict[str, tuple[Any, str]] = {
    "empty": ("", "MALFORMED_JSON"),
    "not JSON": ("hello", "MALFORMED_JSON"),
    "a list": ("[]", "MALFORMED_JSON"),
    "duplicate key": ('{"inputs": [[1,2,3]], "inputs": [[1,2,3]]}', "MALFORMED_JSON"),
    "too deep": (
        '{"instances": ' + "[" * 101 + "1" + "]" * 101 + "}",
        "MALFORMED_JSON",
    ),
    "neither": ({}, "INVALID_REQUEST"),
    "both": ({"instances": FLOWERS, "inputs": FLOWERS}, "INVALID_REQUEST"),
    "no instances": ({"instances": []}, "INVALID_REQUEST"),
    "instances a number": ({"instances": 7}, "INVALID_REQUEST"),
    "instances an object": ({"instances": {"features": FLOWERS}}, "INVALID_REQUEST"),
    "instances null": ({"instances": None}, "INVALID_REQUEST"),
    "another name": ({"instances": [{"petals": FLOWERS[0]}]}, "INVALID_REQUEST"),
    "objects and lists": (
        {"instances": [{"features": FLOWERS[0]}, FLOWERS[1]]},
        "INVALID_REQUEST",
    ),
    "missing input": ({"inputs": {"petals": FLOWERS}}, "INVALID_REQUEST"),
    "signature a number": (
        {"instances": FLOWERS, "signature_name": 7},
        "INVALID_REQUEST",
    ),
    "unknown signature": (
        {"instances": FLOWERS, "signature_name": "other"},
        "INVALID_PARAMETER",
    ),
    "ragged": ({"instances": [[1, 2, 3], [1, 2]]}, "INVALID_TENSOR"),
    "ragged deeper": ({"instances": [[1, 2, [3]]]}, "INVALID_TENSOR"),
    "a list first": ({"instances": [[[1], 2, 3]]}, "INVALID_TENSOR"),
    "wrong width": ({"instances": [[1, 2]]}, "INVALID_TENSOR"),
    "wrong rank": ({"instances": [1, 2, 3]}, "INVALID_TENSOR"),
    "a bare number": ({"inputs": 7}, "INVALID_TENSOR"),
    "text for a number": ({"instances": [[1, 2, "3"]]}, "INVALID_TENSOR"),
    "base64 for a number": ({"inputs": {"b64": "AAAA"}}, "INVALID_TENSOR"),
    "too large": ({"instances": [[1, 2, 1e300]]}, "INVALID_TENSOR"),
    "empty rows": ({"instances": [[], []]}, "INVALID_TENSOR"),
}


@pytest.mark.parametrize(("body", "code"), FAULTS.values(), ids=FAULTS)
def test_invalid_requests_are_rejected(server, refused, body, code):
    refused(predict(server, "petals", body), 400, code)
    assert predict(server, "petals", {"instances": FLOWERS}).status_code == 200


@pytest.mark.parametrize(
    "values",
    [
        [1],
        [{"b64": "!"}],
        [{"b64": 1}],
        ["\ud800"],
        [None],
    ],
)
def test_invalid_texts_are_rejected(kit_server, refused, values):
    refused(predict(kit_server, "strings", {"inputs": values}), 400, "INVALID_TENSOR")


def test_a_model_fixed_to_one_row_answers_several(new_server, models_copy, widths):
    manifest = models_copy / "petals" / "model.toml"
    manifest.write_text(
        manifest.read_text().replace("shape = [-1, 3]", "shape = [1, 3]")
    )
    server = new_server(models_copy)
    assert predict(server, "petals", {"instances": FLOWERS}).json() == {
        "predictions": column(widths)
    }
    (counted,) = server.call("GET", "/v2/models/petals/stats").json()["model_stats"]
    assert (counted["inference_count"], counted["execution_count"]) == (2, 2)
