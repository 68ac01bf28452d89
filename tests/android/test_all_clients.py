"""Get the same answers and error codes from every client."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conftest import MODELS, ROOT, Server, StartServer
from pocketserve_client import Client, ServerError
from ports import free_port

from .conftest import load_script

pytestmark = [pytest.mark.java, pytest.mark.conformance, pytest.mark.live]

SCRIPT: ModuleType = load_script(ROOT / "android_bridge" / "build.py")
SAMPLES = MODELS / "digits" / "samples"
TRANSPORTS = ("http", "socket")
TIMEOUT_S = 120.0

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends one call: ``{"model", "file"}`` for raw input, ``{"model", "input", "shape",
"data"}`` for a tensor.

Returns the server's document, ``{"outputs"}``, or ``{"code", "status"}``.
"""


@pytest.fixture(scope="module")
def probe(
    toolchain: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int, Path], list[object]]:
    """Return the command of the Java program that reads calls from stdin."""
    build = SCRIPT.Build(toolchain, tmp_path_factory.mktemp("probe"))
    library = build.library()
    command = build.test_command(library, build.tests(library), "Probe")
    return lambda transport, port, token: [*command, transport, str(port), token]


@contextmanager
def java(command: list[object]) -> Iterator[Ask]:
    """Return calls by the Java library."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:

        def ask(call: dict[str, Any]) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(call) + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield ask
    finally:
        process.communicate(timeout=TIMEOUT_S)


@contextmanager
def python(url: str, token: Path) -> Iterator[Ask]:
    """Return calls by the Python client."""
    with Client(url, token_file=token, reconnect=TIMEOUT_S) as client:

        def ask(call: dict[str, Any]) -> dict[str, Any]:
            try:
                if "file" in call:
                    return client.predict(
                        call["model"],
                        Path(call["file"]).read_bytes(),
                        top_k=call.get("top_k"),
                    )
                array = np.array(call["data"], np.float32).reshape(call["shape"])
                outputs = client.infer(call["model"], {call["input"]: array})
                return {
                    "outputs": {
                        name: value.reshape(-1).tolist()
                        for name, value in outputs.items()
                    }
                }
            except ServerError as error:
                return {
                    "code": error.code,
                    "status": error.status,
                    "retryable": error.is_retryable,
                }

        yield ask


def tensors(document: dict[str, Any]) -> dict[str, Any]:
    """Return outputs by name."""
    return {
        "outputs": {output["name"]: output["data"] for output in document["outputs"]}
    }


def curl(server: Server) -> Ask:
    """Return calls by curl, which supports HTTP only."""

    def ask(call: dict[str, Any]) -> dict[str, Any]:
        command = [
            "curl",
            "-q",
            "-sS",
            "--noproxy",
            "*",
            "-H",
            f"Authorization: Bearer {server.token}",
        ]
        command += ["-w", "\n%{http_code}"]
        if "file" in call:
            query = ""
            if "top_k" in call:
                query = f"?top_k={call['top_k']}"
            command += [
                "-T",
                call["file"],
                f"{server.url}/predictions/{call['model']}{query}",
            ]
        else:
            item = {
                "name": call["input"],
                "shape": call["shape"],
                "datatype": "FP32",
                "data": call["data"],
            }
            body = json.dumps({"inputs": [item]})
            command += ["-d", body, f"{server.url}/v2/models/{call['model']}/infer"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        body, _, status = done.stdout.rpartition("\n")
        document = json.loads(body)
        if status != "200":
            return {"code": document["code"], "status": int(status)}
        if "file" in call:
            return document
        return tensors(document)

    return ask


def tritonclient(server: Server) -> Ask:
    """Return calls by tritonclient, which has HTTP only.

    It sends raw input as a task.
    """
    import tritonclient.http as http
    from tritonclient.utils import InferenceServerException

    headers = {"Authorization": f"Bearer {server.token}"}

    def ask(call: dict[str, Any]) -> dict[str, Any]:
        parameters: dict[str, Any] = {}
        if "file" in call:
            array: Any = np.array([Path(call["file"]).read_bytes()], dtype=object)
            item = http.InferInput("input", [1], "BYTES")
            parameters = {"task": True} | (
                {"top_k": call["top_k"]} if "top_k" in call else {}
            )
        else:
            array = np.array(call["data"], np.float32).reshape(call["shape"])
            item = http.InferInput(call["input"], list(array.shape), "FP32")
        item.set_data_from_numpy(array)
        with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            try:
                result = client.infer(
                    call["model"], [item], headers=headers, parameters=parameters
                )
            except InferenceServerException as error:
                return {"status": int(error.status())}
        if "file" in call:
            document: dict[str, Any] = json.loads(result.as_numpy("answer")[0])
            return document
        names = [output["name"] for output in result.get_response()["outputs"]]
        return {
            "outputs": {
                name: result.as_numpy(name).reshape(-1).tolist() for name in names
            }
        }

    return ask


@pytest.fixture(scope="module")
def clients(
    server: Server, probe: Callable[..., list[object]]
) -> Iterator[dict[str, Ask]]:
    """Return every client with each of its transports."""
    token = Path(server.ready["token_file"])
    with ExitStack() as stack:
        found: dict[str, Ask] = {
            "curl": curl(server),
            "tritonclient": tritonclient(server),
        }
        for transport in TRANSPORTS:
            port = server.ready[transport]["port"]
            found[f"java {transport}"] = stack.enter_context(
                java(probe(transport, port, token))
            )
            found[f"python {transport}"] = stack.enter_context(
                python(f"{transport}://127.0.0.1:{port}", token)
            )
        yield found


@pytest.mark.parametrize(
    "sample", sorted(SAMPLES.glob("*.png")), ids=lambda path: path.stem
)
def test_the_same_picture_gets_the_same_answer(
    clients: dict[str, Ask], sample: Path
) -> None:
    answers = {
        name: ask(
            {
                "model": "digits",
                "file": str(sample),
                "top_k": 3,
            }
        )
        for name, ask in clients.items()
    }
    expected = answers["curl"]["predictions"]
    assert len(expected) == 3
    assert expected[0]["label"] == sample.stem
    for name, answer in answers.items():
        assert (
            answer["model"] == "digits" and answer["task"] == "image-classification"
        ), name
        assert [entry["label"] for entry in answer["predictions"]] == [
            entry["label"] for entry in expected
        ], name
        scores = [entry["score"] for entry in answer["predictions"]]
        assert scores == pytest.approx(
            [entry["score"] for entry in expected], abs=1e-6
        ), name


def test_the_same_tensor_gets_the_same_answer(clients: dict[str, Ask]) -> None:
    data = (np.arange(64) % 17 / 16).tolist()
    call = {
        "model": "digits",
        "input": "image",
        "shape": [1, 8, 8, 1],
        "data": data,
    }
    answers = {name: ask(call)["outputs"]["scores"] for name, ask in clients.items()}
    assert len(answers) == 6
    for name, scores in answers.items():
        assert scores == pytest.approx(answers["curl"], abs=1e-6), name


FAULTY_CALLS = [
    ({"model": "nothing", "file": str(SAMPLES / "7.png")}, "MODEL_NOT_FOUND", 404),
    ({"model": "digits", "file": __file__}, "INVALID_INPUT", 400),
    (
        {"model": "digits", "file": str(SAMPLES / "7.png"), "top_k": 0},
        "INVALID_PARAMETER",
        400,
    ),
    (
        {
            "model": "digits",
            "input": "image",
            "shape": [1, 8, 8],
            "data": [0.0] * 64,
        },
        "INVALID_TENSOR",
        400,
    ),
    (
        {"model": "digits", "input": "picture", "shape": [1], "data": [0.0]},
        "INVALID_REQUEST",
        400,
    ),
]


@pytest.mark.parametrize(
    ("call", "code", "status"),
    FAULTY_CALLS,
)
def test_the_same_fault_has_the_same_code(
    clients: dict[str, Ask], call: dict[str, Any], code: str, status: int
) -> None:
    for name, ask in clients.items():
        answer = ask(call)
        assert answer["status"] == status, (name, answer)
        # tritonclient passes on the status and the text only.
        assert name == "tritonclient" or answer["code"] == code, (name, answer)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_java_calls_survive_a_killed_and_restarted_server(
    new_server: StartServer, probe: Callable[..., list[object]], transport: str
) -> None:
    """The library finds the new server for the call in progress and for the next one."""
    ports = {"http": free_port(), "socket": free_port()}
    options = [
        part for name, port in ports.items() for part in (f"--{name}-port", str(port))
    ]
    first = new_server(MODELS, *options)
    token = Path(first.ready["token_file"])
    call = {
        "model": "digits",
        "file": str(SAMPLES / "7.png"),
        "top_k": 1,
    }
    with java(probe(transport, ports[transport], token)) as ask:
        assert ask(call)["predictions"][0]["label"] == "7"
        # So that the call is in progress for certain when the server is killed.
        first.process.send_signal(signal.SIGSTOP)
        with ExitStack() as stack:
            pool = stack.enter_context(_one_thread())
            under_way = pool(lambda: ask(call))
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(TIMEOUT_S)
            new_server(MODELS, *options, "--token-file", str(token))
            assert under_way()["predictions"][0]["label"] == "7"
        assert ask(call)["predictions"][0]["label"] == "7"


@contextmanager
def _one_thread() -> Iterator[Callable[[Callable[[], Any]], Callable[[], Any]]]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:

        def submit(work: Callable[[], Any]) -> Callable[[], Any]:
            future = pool.submit(work)
            return lambda: future.result(TIMEOUT_S)

        yield submit
