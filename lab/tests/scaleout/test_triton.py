"""Compare a real Triton with our engine to our own server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from conformance import test_kserve
from conftest import Server, start_server
from places import MODELS, ROOT
from scalar_model import scalar_model

sys.path.append(str(ROOT))

from benchmarks import throughput
from benchmarks.samples import Comparison
from benchmarks.timing import QUICK
from benchmarks.triton import triton

pytestmark = [pytest.mark.triton, pytest.mark.live, pytest.mark.alone]
RANDOM = np.random.default_rng(7)
INPUTS: dict[str, list[dict[str, Any]]] = {
    **{
        name: [
            {
                "name": "image",
                "shape": [2, 8, 8, 1],
                "datatype": "FP32",
                "data": RANDOM.random(128).tolist(),
            }
        ]
        for name in ("digits", "digits.tflite", "digits.tflite-int8", "digits.onnx")
    },
    "petals": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two embedded models, and one with tensors without dimensions."""
    models = tmp_path_factory.mktemp("models")
    for name in ("digits", "petals"):
        shutil.copytree(MODELS / name, models / name)
    (models / "double").mkdir()
    scalar_model(models / "double" / "double.onnx")
    return models


@pytest.fixture(scope="module")
def ours(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(tmp_path_factory.mktemp("ours"), folder)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Iterator[str]:
    with triton(folder, core=None) as port:
        yield f"http://127.0.0.1:{port}"


def ask_triton(url: str, name: str, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    answer = requests.post(
        f"{url}/v2/models/{name}/infer", json={"inputs": inputs}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def inputs_of(server: Server, name: str, path: str) -> list[dict[str, Any]]:
    """Return a model's inputs: its own in this file, else halves."""
    if INPUTS[name]:
        return list(INPUTS[name])
    inputs = []
    for spec in server.call("GET", path).json()["inputs"]:
        shape = [abs(size) for size in spec["shape"]]
        inputs.append(
            {
                **spec,
                "shape": shape,
                "data": [0.5] * int(np.prod(shape)),
            }
        )
    return inputs


@pytest.mark.parametrize(
    "name", ["digits", "digits.tflite", "digits.tflite-int8", "digits.onnx", "petals"]
)
def test_answers_are_equal(ours: Server, theirs: str, name: str) -> None:
    """Every output has the same name, shape and values, and none is empty."""
    model, _, version = name.partition(".")
    path = f"/v2/models/{model}"
    if version:
        path += f"/versions/{version}"
    inputs = inputs_of(ours, name, path)
    answer = ours.call("POST", f"{path}/infer", json={"inputs": inputs})
    expected = answer.json()["outputs"]
    answered = ask_triton(theirs, name, inputs)["outputs"]
    names = [output["name"] for output in expected]
    assert [output["name"] for output in answered] == names
    for mine, other in zip(expected, answered, strict=True):
        assert other["shape"] == mine["shape"]
        assert len(other["data"]) == np.prod(mine["shape"]) > 0
        assert other["data"] == pytest.approx(mine["data"], abs=1e-6)


def test_a_tensor_without_dimensions_has_one_of_size_1(theirs: str) -> None:
    [output] = ask_triton(
        theirs,
        "double",
        [{"name": "x", "shape": [1], "datatype": "FP64", "data": [21.0]}],
    )["outputs"]
    assert output["shape"] == [1]
    assert output["data"] == [42.0]


def test_binary_tensors(theirs: str) -> None:
    """Triton's own client sends and receives bytes."""
    client: Any = pytest.importorskip("tritonclient.http")
    image = RANDOM.random((1, 8, 8, 1)).astype(np.float32)
    tensor = client.InferInput("image", image.shape, "FP32")
    tensor.set_data_from_numpy(image)
    with client.InferenceServerClient(theirs.removeprefix("http://")) as connection:
        scores = connection.infer("digits", [tensor]).as_numpy("scores")
    plain = [
        {
            "name": "image",
            "shape": [1, 8, 8, 1],
            "datatype": "FP32",
            "data": image.ravel().tolist(),
        }
    ]
    assert scores.ravel().tolist() == pytest.approx(
        ask_triton(theirs, "digits", plain)["outputs"][0]["data"], abs=1e-6
    )
    assert scores.sum() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_a_client_of_kserve(theirs: str, binary_in: bool, binary_out: bool) -> None:
    """Both forms work; it can't read Triton's empty health answers."""
    image = RANDOM.random((1, 8, 8, 1)).astype(np.float32)
    answers: list[Any] = []

    async def work(client: Any) -> None:
        sent = test_kserve.image(image, binary_in=binary_in, binary_out=binary_out)
        answers.append(await client.infer(theirs, sent, "digits"))

    test_kserve.run("v2", work)
    [output] = answers[0].outputs
    plain = [
        {
            "name": "image",
            "shape": [1, 8, 8, 1],
            "datatype": "FP32",
            "data": image.ravel().tolist(),
        }
    ]
    expected = ask_triton(theirs, "digits", plain)["outputs"][0]["data"]
    assert output.as_numpy().ravel().tolist() == pytest.approx(expected, abs=1e-6)


def curl(url: str, body: bytes, length: int) -> Any:
    """Return curl's answer to a request whose JSON part has this length."""
    command = ["curl", "-q", "-sS", "--fail"]
    command += ["-H", f"Inference-Header-Content-Length: {length}"]
    command += ["-H", "Content-Type: application/octet-stream"]
    command += ["--data-binary", "@-", url]
    done = subprocess.run(command, input=body, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_curl(theirs: str) -> None:
    """A tensor is sent as JSON and as bytes."""
    image = RANDOM.random((1, 8, 8, 1)).astype(np.float32)
    tensor = {
        "name": "image",
        "shape": [1, 8, 8, 1],
        "datatype": "FP32",
    }
    as_json = {**tensor, "data": image.ravel().tolist()}
    as_bytes = {**tensor, "parameters": {"binary_data_size": image.nbytes}}
    json_body = json.dumps({"inputs": [as_json]}).encode()
    header = json.dumps({"inputs": [as_bytes]}).encode()
    expected = ask_triton(theirs, "digits", [as_json])["outputs"][0]["data"]

    url = f"{theirs}/v2/models/digits/infer"
    answers = [
        curl(url, json_body, len(json_body)),
        curl(url, header + image.tobytes(), len(header)),
    ]
    for answer in answers:
        data = answer["outputs"][0]["data"]
        assert data == pytest.approx(expected, abs=1e-6)


def test_its_rate_is_measured_beside_ours() -> None:
    """A short run of benchmark Q1 gets answers on every connection."""
    rows = throughput.run(QUICK)
    assert [row.name for row in rows] == ["Q1"] * len(throughput.GOALS) * len(
        throughput.CONNECTIONS
    )
    assert all(
        isinstance(row, Comparison) and min(*row.ours, *row.floor) > 0 for row in rows
    )
