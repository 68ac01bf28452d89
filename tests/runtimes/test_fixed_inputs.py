"""Test ``[fixed_inputs]``, which give inputs the same value in every request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Server, StartServer
from pocketserve.repository.manifest import ManifestError, parse_manifest

onnx = pytest.importorskip("onnx")
pytestmark = [pytest.mark.onnx, pytest.mark.live]

BuildModel = Callable[[str, str], None]


def save_sum(path: Path) -> None:
    """Write a model that returns x + scale where flag is true, else x."""
    helper = onnx.helper
    kinds = onnx.TensorProto
    nodes = [
        helper.make_node("Cast", ["flag"], ["factor"], to=kinds.FLOAT),
        helper.make_node("Mul", ["scale", "factor"], ["added"]),
        helper.make_node("Add", ["x", "added"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", kinds.FLOAT, ["rows", 2]),
        helper.make_tensor_value_info("scale", kinds.FLOAT, ["one", 2]),
        helper.make_tensor_value_info("flag", kinds.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", kinds.FLOAT, ["rows", 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, str(path))


@pytest.fixture
def build(tmp_path: Path) -> BuildModel:
    """Return a function that writes a model with a manifest: ``build(name, manifest)``."""

    def write(name: str, manifest: str) -> None:
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        save_sum(folder / "model.onnx")
        (folder / "model.toml").write_text(manifest)

    return write


def predict(server: Server, name: str, values: str) -> list[float]:
    response = server.call("POST", f"/predictions/{name}", data=values)
    assert response.status_code == 200, response.text
    data: list[float] = response.json()["predictions"][0]["data"]
    return data


def test_both_transports_fill_fixed_inputs(
    tmp_path: Path, new_server: StartServer, build: BuildModel
) -> None:
    build("number", "[fixed_inputs]\nscale = 2\nflag = true\n")
    build("list", "[fixed_inputs]\nscale = [[1.0, 3.0]]\nflag = true\n")
    server = new_server(tmp_path / "models")

    assert predict(server, "number", "[[1, 1]]") == [3, 3]
    assert predict(server, "list", "[[1, 1]]") == [2, 4]
    with server.connect() as connection:
        answer = connection.call("POST /predictions/list", b"[[1, 1]]")
    assert answer.document["predictions"][0]["data"] == [2, 4]


def test_a_request_may_send_another_value(
    tmp_path: Path, new_server: StartServer, build: BuildModel
) -> None:
    build("sum", "[fixed_inputs]\nscale = 2\nflag = true\n")
    server = new_server(tmp_path / "models")

    assert predict(server, "sum", '{"x": [[1, 1]], "flag": false}') == [1, 1]
    interface = server.call("GET", "/v2/models/sum/interface").json()
    optional = {}
    for entry in interface["inputs"]:
        optional[entry["name"]] = entry.get("parameters", {}).get("optional", False)
    assert optional == {
        "x": False,
        "scale": True,
        "flag": True,
    }


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        ("[fixed_inputs]\nscales = 2\n", "fixed_inputs names 'scales'"),
        (
            "[fixed_inputs]\nscale = [1.0, 2.0, 3.0]\n",
            "fixed_inputs.scale does not fit",
        ),
        (
            '[fixed_inputs]\nscale = 1\n[state.feedback]\nscale = "y"\n',
            "fixed_inputs and in state.feedback",
        ),
    ],
)
def test_values_of_the_wrong_shape_are_refused(
    tmp_path: Path,
    new_server: StartServer,
    build: BuildModel,
    manifest: str,
    fault: str,
) -> None:
    build("sum", manifest)
    server = new_server(tmp_path / "models")

    response = server.call("POST", "/predictions/sum", data="[[1, 1]]")

    assert response.status_code >= 400
    assert fault in response.json()["error"]


@pytest.mark.parametrize(
    "value",
    [
        "text",
        ["a"],
        {"a": 1},
        [[1], ["b"]],
    ],
)
def test_values_that_are_not_numbers_are_refused(value: object) -> None:
    with pytest.raises(
        ManifestError,
        match=r"fixed_inputs\.scale must be a number or a list of numbers",
    ):
        parse_manifest({"fixed_inputs": {"scale": value}})
