"""The model owner's ``task.py`` on a real server, and its errors."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT, StartServer
from pocketserve_wire import Tensor, oip
from trusting import trust_all

pytestmark = pytest.mark.live

MODEL = ROOT / "tests" / "runtimes" / "data" / "dynamic_batch.tflite"
WORDS = """
import numpy as np

labels = ["low", "high"]

def prepare(body, hints):
    text = body.decode()
    if "!" in text:
        raise ValueError("no shouting")
    if "?" in text:
        raise KeyError("what")
    count = hints.values.get("width", 1)
    return {NAME: np.full(SHAPE, len(text) * count, np.float32)}

def answer(outputs, options, context):
    (value,) = outputs.values()
    if options.top_k == 7:
        np.zeros(2) + np.zeros(3)
    return {"sum": value.sum(), "first": value.reshape(-1)[:2], "top_k": options.top_k}
"""


def model_with(folder: Path, code: str, manifest: str = "") -> Path:
    """Create a models folder whose one model has this task."""
    from pocketserve.repository.scan import scan
    from pocketserve.runtimes.base import ModelSource
    from pocketserve.runtimes.registry import runtime_for

    own = folder / "models" / "mine"
    own.mkdir(parents=True)
    shutil.copy(MODEL, own / "mine.tflite")
    version = scan(folder / "models")["mine"].versions["tflite"]
    spec = runtime_for(version.format).open(ModelSource(version.path)).inputs[0]
    shape = tuple(1 if dim < 0 else dim for dim in spec.shape)
    (own / "task.py").write_text(
        code.replace("NAME", repr(spec.name)).replace("SHAPE", repr(shape))
    )
    if manifest:
        (own / "model.toml").write_text(manifest)
    return trust_all(folder / "models")


def test_the_functions_of_task_py_are_called(
    new_server: StartServer, tmp_path: Path
) -> None:
    """Input and answer pass through the file.

    NumPy numbers become JSON.
    """
    server = new_server(model_with(tmp_path, WORDS))
    answer = server.call(
        "POST", "/predictions/mine?top_k=2&width=3", data=b"four"
    ).json()
    assert answer["task"] == "custom"
    (entry,) = answer["predictions"]
    assert entry["top_k"] == 2
    assert isinstance(entry["sum"], float)
    assert isinstance(entry["first"], list)
    card = server.call("GET", "/v2/models/mine").json()["card"]
    assert (card["accepts"], card["parameters"]) == (["file"], {})
    once = server.call("POST", "/predictions/mine", data=b"twelve chars").json()[
        "predictions"
    ][0]
    assert once["sum"] == entry["sum"]
    assert once["top_k"] is None


def test_exceptions_of_task_py_are_reported(
    new_server: StartServer, tmp_path: Path
) -> None:
    """A ValueError of prepare() is an input error.

    Any other exception is the file's.
    """
    server = new_server(model_with(tmp_path, WORDS, 'task = "custom"\n'))
    refused = server.call("POST", "/predictions/mine", data=b"hey!")
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_INPUT")
    assert "no shouting" in refused.json()["error"]
    failed = server.call("POST", "/predictions/mine", data=b"hey?")
    assert (failed.status_code, failed.json()["code"]) == (500, "INFERENCE_FAILED")
    assert "prepare() in task.py failed: KeyError" in failed.json()["error"]
    failed = server.call("POST", "/predictions/mine?top_k=7", data=b"hey")
    assert (failed.status_code, failed.json()["code"]) == (500, "INFERENCE_FAILED")
    assert "answer() in task.py failed: ValueError" in failed.json()["error"]
    picture = server.call("POST", "/predictions/mine?annotate=png", data=b"hey")
    assert picture.json()["code"] == "INVALID_PARAMETER"
    assert "custom" in picture.json()["error"]


MISTAKES: dict[str, tuple[str, str]] = {
    "another name": ("prepare", "{'y': np.zeros(SHAPE)}"),
    "an input is missing": ("prepare", "{}"),
    "an input is missing in the second run": (
        "prepare",
        "Prepared([{NAME: np.zeros(SHAPE, np.float32)}, {}])",
    ),
    "another shape": ("prepare", "{NAME: np.zeros((*SHAPE, 2), np.float32)}"),
    "another datatype": ("prepare", "{NAME: np.zeros(SHAPE, np.int64)}"),
    "no runs": ("prepare", "Prepared([])"),
    "runs that are none": ("prepare", "Prepared(None)"),
    "complex": ("prepare", "{NAME: np.zeros(SHAPE, complex)}"),
    "a date": ("prepare", "{NAME: np.zeros(SHAPE, 'datetime64[s]')}"),
    "ragged": ("prepare", "{NAME: [[1], [2, 3]]}"),
    "no dict": ("prepare", "7"),
    "runs that are no dicts": ("prepare", "Prepared((np.zeros(SHAPE),))"),
    "a set": ("answer", "[{'a': {1}}]"),
    "bytes": ("answer", "{'a': [b'x']}"),
    "a complex number": ("answer", "{'a': np.complex64(1j)}"),
    "a huge integer": ("answer", "{'a': 10 ** 5000}"),
    "itself": ("answer", "LOOP"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_invalid_results_of_task_py_are_reported(
    new_server: StartServer, tmp_path: Path, case: str
) -> None:
    """Each result is checked at once, and the error names the function."""
    name, result = MISTAKES[case]
    given = {
        "prepare": "{NAME: np.zeros(SHAPE, np.float32)}",
        "answer": "[]",
        name: result,
    }
    code = (
        "import numpy as np\nfrom pocketserve.tasks.base import Prepared\nLOOP = {}\nLOOP['a'] = LOOP\n"
        f"def prepare(body, hints):\n    return {given['prepare']}\n"
        f"def answer(outputs, options, context):\n    return {given['answer']}\n"
    )
    server = new_server(model_with(tmp_path, code))
    failed = server.call("POST", "/predictions/mine", data=b"x")
    assert (failed.status_code, failed.json()["code"]) == (500, "INFERENCE_FAILED"), (
        failed.text
    )
    assert f"{name}() in task.py returned" in failed.json()["error"]
    with server.connect() as framed:
        assert (
            json.loads(framed.call("POST /predictions/mine", b"x").body)
            == failed.json()
        )


def test_without_prepare_the_client_sends_the_input(
    new_server: StartServer, tmp_path: Path
) -> None:
    """With only ``answer``, the client sends the input and is responsible for it."""
    server = new_server(
        model_with(tmp_path, "def answer(outputs, options, context):\n    return []\n")
    )
    for body in (b"{}", b'{"y": [1]}', b"[[[[[1]]]]]"):
        refused = server.call("POST", "/predictions/mine", data=body)
        assert refused.status_code == 400 and refused.json()["code"].startswith(
            "INVALID"
        ), refused.text


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("x = 1", "neither prepare"),
        ("1 / 0", "ZeroDivisionError"),
        ("def prepare(", "SyntaxError"),
    ],
)
def test_invalid_task_files_are_rejected(
    new_server: StartServer, tmp_path: Path, code: str, part: str
) -> None:
    """A file that fails or defines nothing makes the model unavailable with the reason."""
    answer = new_server(model_with(tmp_path, code)).call(
        "POST", "/predictions/mine", data=b"x"
    )
    assert answer.status_code == 503
    assert part in answer.json()["error"]


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
def test_code_writable_by_others_is_not_run(
    new_server: StartServer, tmp_path: Path
) -> None:
    """The same rule as for model.py."""
    models = model_with(tmp_path, WORDS)
    (models / "mine" / "task.py").chmod(0o666)
    answer = new_server(models).call("POST", "/predictions/mine", data=b"x")
    assert answer.status_code == 503
    assert "can be written by every user" in answer.json()["error"]


def test_a_missing_task_file(new_server: StartServer, tmp_path: Path) -> None:
    """Covers a promising manifest and a folder without the file."""
    models = model_with(tmp_path, WORDS, 'task = "custom"\n')
    (models / "mine" / "task.py").unlink()
    answer = new_server(models).call("POST", "/predictions/mine", data=b"x")
    assert answer.status_code == 503
    assert "needs a file task.py" in answer.json()["error"]


# The same over the Open Inference Protocol


def over_oip(server: Any, model: str, body: bytes, **parameters: Any) -> Any:
    """Return the answer to one binary BYTES tensor, as tritonclient sends it."""
    request = oip.InferRequest(
        inputs=[Tensor("input", "BYTES", (1,), [body])],
        parameters={"task": True, **parameters},
        binary_output=True,
    )
    encoded = oip.encode_infer_request(request)
    headers = {"Inference-Header-Content-Length": str(encoded.json_length)}
    answer = server.call(
        "POST",
        f"/v2/models/{model}/infer",
        data=b"".join(encoded.chunks),
        headers=headers,
    )
    length = int(answer.headers["Inference-Header-Content-Length"])
    return json.loads(
        oip.decode_infer_response(answer.content, length).outputs[0].data[0]
    )


def test_raw_input_over_the_open_inference_protocol(server: Any) -> None:
    """With parameters.task, one BYTES element gets the same answer as /predictions."""
    body = (ROOT / "models" / "digits" / "samples" / "7.png").read_bytes()
    answer = over_oip(server, "digits", body, top_k=2)
    plain = server.call("POST", "/predictions/digits?top_k=2", data=body).json()
    assert answer["predictions"] == plain["predictions"]
    assert answer["task"] == plain["task"]
    text = json.dumps(np.arange(64).tolist())
    document = {
        "parameters": {"task": True},
        "inputs": [{"name": "any", "datatype": "BYTES", "shape": [1], "data": [text]}],
    }
    response = server.call("POST", "/v2/models/digits/infer", json=document).json()
    (output,) = response["outputs"]
    assert output["name"] == "answer"
    assert output["datatype"] == "BYTES"
    assert output["shape"] == [1]
    assert json.loads(output["data"][0])["model"] == "digits"


def test_a_drawing_over_the_open_inference_protocol(server: Any) -> None:
    """The PNG file is binary output.

    JSON cannot carry it and is rejected with the way out.
    """
    body = (ROOT / "models" / "digits" / "samples" / "7.png").read_bytes()
    request = oip.InferRequest(
        [Tensor("x", "BYTES", (1,), [body])],
        parameters={"task": True, "annotate": "png"},
    )
    for binary in (True, False):
        request.binary_output = binary
        encoded = oip.encode_infer_request(request)
        headers = {"Inference-Header-Content-Length": str(encoded.json_length)}
        answer = server.call(
            "POST",
            "/v2/models/digits/infer",
            data=b"".join(encoded.chunks),
            headers=headers,
        )
        if binary:
            length = int(answer.headers["Inference-Header-Content-Length"])
            (output,) = oip.decode_infer_response(answer.content, length).outputs
            assert output.data[0].startswith(b"\x89PNG")
        else:
            assert answer.status_code == 400
            assert "binary" in answer.json()["error"]


BYTES = {
    "name": "x",
    "datatype": "BYTES",
    "shape": [1],
    "data": ["[1]"],
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        # Another server's parameter, so this is a tensor request.
        (
            {"parameters": {"task": 1}},
            "INVALID_REQUEST",
        ),
        ({"parameters": {"task": True, "tpo_k": 1}}, "INVALID_PARAMETER"),
        ({"parameters": {"task": True, "top_k": 0}}, "INVALID_PARAMETER"),
        ({"parameters": {"task": True, "content_type": 3}}, "INVALID_PARAMETER"),
        ({"parameters": {"task": True, "timeout": -1}}, "INVALID_PARAMETER"),
        ({"inputs": []}, "INVALID_REQUEST"),
        ({"inputs": [BYTES, BYTES | {"name": "y"}]}, "INVALID_REQUEST"),
        ({"inputs": [BYTES | {"shape": [2], "data": ["a", "b"]}]}, "INVALID_INPUT"),
        ({"inputs": [BYTES | {"shape": [0], "data": []}]}, "INVALID_TENSOR"),
        ({"inputs": [BYTES | {"datatype": "UINT8", "data": [1]}]}, "INVALID_REQUEST"),
        ({"outputs": [{"name": "scores"}]}, "INVALID_REQUEST"),
        ({}, "INVALID_INPUT"),
    ],
)
def test_invalid_task_requests_are_rejected(
    server: Any, change: dict[str, Any], code: str
) -> None:
    """Each error has the same code as elsewhere."""
    document = {
        "parameters": {"task": True},
        "inputs": [BYTES],
        **change,
    }
    answer = server.call("POST", "/v2/models/digits/infer", json=document)
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text
