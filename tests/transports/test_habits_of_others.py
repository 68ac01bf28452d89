"""Accept habits of TensorFlow Serving, TorchServe and Triton users on both transports."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, Server, start_server

onnx = pytest.importorskip("onnx", reason="makes the models")

pytestmark = [pytest.mark.live, pytest.mark.onnx]

LONG = "scope/" * 100 + "x"
SEVEN = (MODELS / "digits" / "samples" / "7.png").read_bytes()
Ask = Callable[..., tuple[int, Any]]


def half_plus_two(path: Path, name: str, width: int = 1, rows: int | str = "n") -> None:
    """Write TensorFlow Serving's first example: x / 2 + 2."""
    helper = onnx.helper
    kind = onnx.TensorProto.FLOAT
    ends = []
    for end in (name, "y"):
        ends.append(helper.make_tensor_value_info(end, kind, [rows, width]))
    values = []
    for key, value in (("half", 0.5), ("two", 2.0)):
        values.append(helper.make_tensor(key, kind, [], [value]))
    nodes = [
        helper.make_node("Mul", [name, "half"], ["z"]),
        helper.make_node("Add", ["z", "two"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "half_plus_two", ends[:1], ends[1:], values)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    path.parent.mkdir(parents=True)
    path.write_bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on such models and the digits."""
    folder = tmp_path_factory.mktemp("models")
    half_plus_two(folder / "half_plus_two" / "00000123" / "model.onnx", "x")
    half_plus_two(folder / "wide" / "1" / "model.onnx", "x", 2)
    half_plus_two(folder / "long" / "1" / "model.onnx", LONG)
    half_plus_two(folder / "one" / "1" / "model.onnx", "x", 3, rows=1)
    (folder / "digits").mkdir()
    for name in ("digits.tflite", "model.toml", "labels.txt"):
        (folder / "digits" / name).write_bytes((MODELS / "digits" / name).read_bytes())
    server = start_server(tmp_path_factory.mktemp("server"), folder)
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["http", "socket"])
def ask(request: pytest.FixtureRequest, served: Server) -> Iterator[Ask]:
    """Send a request; return the status and the document."""

    def over_http(
        method: str, path: str, body: Any = b"", content_type: str = ""
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {served.token}"} | (
            {"Content-Type": content_type} if content_type else {}
        )
        plain.request(
            method, path, body if isinstance(body, bytes) else json.dumps(body), headers
        )
        answer = plain.getresponse()
        return answer.status, json.loads(answer.read())

    def over_socket(
        method: str, path: str, body: Any = b"", content_type: str = ""
    ) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = {"ext": {2: content_type.encode()}} if content_type else {}
        answer = framed.call(
            f"{method} {path}", content, json_length=len(content), **more
        )
        return answer.status, json.loads(answer.body)

    plain = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    with served.connect() as framed:
        yield over_http if request.param == "http" else over_socket
    plain.close()


# TensorFlow Serving


SINGLE_VALUES = [
    ({"instances": [1.0, 2.0, 5.0]}, {"predictions": [2.5, 3.0, 4.5]}),
    ({"instances": [{"x": 1.0}, {"x": 2.0}]}, {"predictions": [2.5, 3.0]}),
    ({"instances": [[1.0], [2.0]]}, {"predictions": [[2.5], [3.0]]}),
    ({"instances": [{"x": [1.0]}]}, {"predictions": [[2.5]]}),
    ({"inputs": [1.0, 2.0]}, {"outputs": [2.5, 3.0]}),
    ({"inputs": {"x": [1.0, 2.0]}}, {"outputs": [2.5, 3.0]}),
    ({"inputs": [[1.0], [2.0]]}, {"outputs": [[2.5], [3.0]]}),
]


@pytest.mark.parametrize(
    ("body", "answer"),
    SINGLE_VALUES,
)
def test_single_values_are_rows(ask: Ask, body: Any, answer: Any) -> None:
    """The answer to the README's example has the form of the request."""
    assert ask("POST", "/v1/models/half_plus_two:predict", body) == (200, answer)


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [1.0, 2.0]},
        {"inputs": 1.0},
        {"instances": [[[1.0, 2.0]]]},
    ],
)
def test_values_that_are_not_rows_are_refused(ask: Ask, body: Any) -> None:
    status, document = ask("POST", "/v1/models/wide:predict", body)
    assert status == 400
    assert document["code"] == "INVALID_TENSOR"
    assert "expected shape [-1, 2], got" in document["error"]


@pytest.mark.parametrize("version", ["123", "00000123", "0123"])
def test_a_version_with_leading_zeros_is_found(ask: Ask, version: str) -> None:
    """The folder 00000123 contains version 123."""
    path = f"/v1/models/half_plus_two/versions/{version}"
    assert ask("POST", f"{path}:predict", {"instances": [1.0]}) == (
        200,
        {"predictions": [2.5]},
    )
    status, document = ask("GET", "/v1/models/half_plus_two")
    assert status == 200
    assert [one["version"] for one in document["model_version_status"]] == ["123"]
    assert ask("GET", f"/v2/models/half_plus_two/versions/{version}/ready")[0] == 200


@pytest.mark.parametrize("verb", ["classify", "regress", "explain"])
@pytest.mark.parametrize("version", ["", "/versions/123"])
def test_unsupported_routes_are_explained(ask: Ask, verb: str, version: str) -> None:
    status, document = ask("POST", f"/v1/models/half_plus_two{version}:{verb}", {})
    assert (status, document["code"]) == (
        501,
        "NOT_IMPLEMENTED",
    )
    assert ":predict" in document["error"]


def test_cloud_events_are_answered(ask: Ask) -> None:
    event = {"specversion": "1.0", "data": {"instances": [1.0]}}
    status, document = ask(
        "POST",
        "/v1/models/half_plus_two:predict",
        event,
        "application/cloudevents+json",
    )
    assert (status, document["code"]) == (
        501,
        "NOT_IMPLEMENTED",
    )
    assert "plain JSON" in document["error"]


def test_cloud_events_in_binary_mode(served: Server) -> None:
    """The event is in headers, and the body is its data."""
    event = {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "a",
        "ce-type": "b",
    }
    answer = served.call(
        "POST",
        "/v1/models/half_plus_two:predict",
        json={"instances": [1.0]},
        headers=event,
    )
    assert answer.status_code == 501
    assert answer.json()["code"] == "NOT_IMPLEMENTED"


# Triton and MLServer


def item(name: str = "x") -> dict[str, Any]:
    """Return one input of one row."""
    return {
        "name": name,
        "datatype": "FP32",
        "shape": [1, 1],
        "data": [1],
    }


@pytest.mark.parametrize("verb", ["register", "status"])
def test_a_region_may_have_the_name_of_a_tensor(ask: Ask, verb: str) -> None:
    """perf_analyzer names regions that way."""
    method = "GET"
    if verb == "register":
        method = "POST"
    status, document = ask(
        method, f"/v2/systemsharedmemory/region/serving_default_x:0/{verb}", {}
    )
    assert status == 501
    assert document["code"] == "NOT_IMPLEMENTED"


def test_a_batch_that_the_file_fixes_to_one_is_dropped_from_the_metadata(
    ask: Ask,
) -> None:
    """Triton's image client expects the sizes of one picture, and classes for each."""
    status, config = ask("GET", "/v2/models/one/config")
    assert status == 200
    assert config["max_batch_size"] == 1
    assert config["input"][0]["dims"] == config["output"][0]["dims"] == [3]
    three = {
        "name": "x",
        "datatype": "FP32",
        "shape": [1, 3],
        "data": [1, 3, 2],
    }
    body = {
        "inputs": [three],
        "outputs": [{"name": "y", "parameters": {"classification": 2}}],
    }
    status, document = ask("POST", "/v2/models/one/infer", body)
    (output,) = document["outputs"]
    assert status == 200
    assert output["shape"] == [1, 2]
    assert output["data"] == ["3.500000:1", "3.000000:2"]


def test_every_entry_of_the_index_has_a_reason(ask: Ask) -> None:
    status, entries = ask("POST", "/v2/repository/index", {})
    assert status == 200
    assert entries
    assert all(isinstance(entry["reason"], str) for entry in entries)


@pytest.mark.parametrize(
    "parameters",
    [
        *(
            {"task": "translate"},
            {"task": 7},
            {"task": False},
            {"stream": True},
            {"stream": 1},
        ),
        *(
            {"signature_name": "any"},
            {"signature_name": 5},
            {"temperature": 0.5, "model": "x"},
        ),
    ],
)
def test_foreign_parameters_are_ignored(ask: Ask, parameters: dict[str, Any]) -> None:
    """Triton passes any name to its backend.

    Unknown ones change nothing here.
    """
    for _ in range(2):  # the second one is of a known kind
        status, document = ask(
            "POST",
            "/v2/models/half_plus_two/infer",
            {"inputs": [item()], "parameters": parameters},
        )
        assert status == 200
        assert document["outputs"][0]["data"] == [2.5]


def test_long_names_of_tensors(ask: Ask) -> None:
    """Names in the metadata can be sent and requested."""
    (given,) = ask("GET", "/v2/models/long")[1]["inputs"]
    assert given["name"] == LONG
    assert len(LONG) > 600
    status, document = ask(
        "POST",
        "/v2/models/long/infer",
        {"inputs": [item(LONG)], "outputs": [{"name": "y"}]},
    )
    assert status == 200
    assert document["outputs"][0]["data"] == [2.5]
    status, document = ask(
        "POST", "/v2/models/long/infer", {"inputs": [item("n" * 4097)]}
    )
    assert status == 400
    assert "1 to 4096 characters" in document["error"]


# TorchServe


def test_ping_is_answered(ask: Ask, served: Server) -> None:
    assert ask("GET", "/ping") == (200, {"status": "Healthy"})
    assert served.session.get(f"{served.url}/ping").json() == {"status": "Healthy"}


def test_a_version_may_be_in_the_path(ask: Ask) -> None:
    status, document = ask("POST", "/predictions/digits/tflite?top_k=1", SEVEN)
    assert status == 200
    assert document["predictions"][0]["label"] == "7"
    assert ask("PUT", "/predictions/digits/tflite?version=tflite", SEVEN)[0] == 200
    assert (
        ask("POST", "/predictions/digits/nothing", SEVEN)[1]["code"]
        == "VERSION_NOT_FOUND"
    )
    assert (
        ask("POST", "/predictions/digits/tflite?version=onnx", SEVEN)[1]["code"]
        == "INVALID_PARAMETER"
    )


def form(
    *parts: bytes, boundary: str = "--d9c", end: bytes = b"--\r\n", headers: bytes = b""
) -> bytes:
    """Return a form of these files, as curl writes it."""
    head = (
        b'Content-Disposition: form-data; name="data"; filename="a.png"\r\n'
        + headers
        + b"\r\n"
    )
    return b"".join(
        b"--%b\r\n%b%b\r\n" % (boundary.encode(), head, part) for part in parts
    ) + (b"--%b%b" % (boundary.encode(), end))


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=--d9c",
        'Multipart/Form-Data; boundary="--d9c"; a=b',
    ],
)
@pytest.mark.parametrize("headers", [b"", b"Content-Type: image/png\r\n"])
def test_a_file_in_a_form_is_answered(ask: Ask, kind: str, headers: bytes) -> None:
    """The command is ``curl -F data=@7.png``."""
    status, document = ask(
        "POST", "/predictions/digits", form(SEVEN, headers=headers), kind
    )
    assert status == 200
    assert document["predictions"][0]["label"] == "7"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (form(), "the form cannot be read"),
        (form(SEVEN, end=b"x"), "the form cannot be read"),
        (form(SEVEN)[:-20], "the form is cut off"),
        (b"", "the form cannot be read"),
        (b"----d9c\r\n", "the form cannot be read"),
        (b"----d9c\r\nA: b\r\n" + b"a" * 9000 + b"\r\n\r\n", "the form cannot be read"),
        (
            form(b"aGVsbG8=", headers=b"Content-Transfer-Encoding: base64\r\n"),
            "the form encodes its part",
        ),
        (form(SEVEN, boundary="other"), "the form cannot be read"),
        (form(b""), "the body is empty"),
    ],
)
def test_forms_that_are_refused(ask: Ask, body: bytes, said: str) -> None:
    status, document = ask(
        "POST", "/predictions/digits", body, "multipart/form-data; boundary=--d9c"
    )
    assert status == 400 and document["error"].startswith(said), document
