"""gunicorn with two workers answers as the plain server does, and refuses what would reach one of them only."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from conftest import Server
from gunicorn_server import COMMAND, gunicorn, workers_of
from places import MODELS, ROOT

pytestmark = pytest.mark.live
PICTURE = (MODELS / "digits" / "samples" / "7.png").read_bytes()
IMAGE = np.linspace(0, 1, 64, dtype=np.float32)
TENSOR = {"name": "image", "shape": [1, 8, 8, 1], "datatype": "FP32"}
JSON_BODY = json.dumps({"inputs": [TENSOR | {"data": IMAGE.tolist()}]}).encode()
HEAD = json.dumps(
    {
        "inputs": [TENSOR | {"parameters": {"binary_data_size": IMAGE.nbytes}}],
        "parameters": {"binary_data_output": True},
    }
).encode()
BINARY = {"data": HEAD + IMAGE.tobytes(), "headers": {"Inference-Header-Content-Length": str(len(HEAD))}}
QUESTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tensors as JSON": ("POST", "/v2/models/digits/infer", {"data": JSON_BODY}),
    "binary tensors": ("POST", "/v2/models/digits/versions/tflite/infer", BINARY),
    "a body in chunks": ("POST", "/v2/models/digits/infer", {"data": [JSON_BODY[:100], JSON_BODY[100:]]}),
    "a picture": ("PUT", "/predictions/digits", {"data": PICTURE}),
    "numbers": ("POST", "/predictions/petals", {"data": "[5.1, 3.5, 1.4]"}),
    "TensorFlow Serving": ("POST", "/v1/models/petals:predict", {"json": {"instances": [[5.1, 3.5, 1.4]]}}),
    "metadata": ("GET", "/v2/models/digits", {}),
    "a gzip answer": ("GET", "/v2/models/digits/config", {"headers": {"Accept-Encoding": "gzip"}}),
    "only the head": ("HEAD", "/v2/models/digits", {}),
    "an unknown model": ("POST", "/v2/models/nobody/infer", {"data": JSON_BODY}),
    "an unknown path": ("GET", "/nowhere", {}),
    "another method": ("DELETE", "/v2/models/digits", {}),
    "bad JSON": ("POST", "/v2/models/digits/infer", {"data": b"{"}),
    "another host": ("GET", "/v2", {"headers": {"Host": "example.org"}}),
    "no valid token": ("GET", "/v2", {"headers": {"Authorization": "Bearer nonsense"}}),
}


def ask(server: Server, question: str) -> requests.Response:
    """Ask one of them; a body in pieces goes in chunks."""
    method, path, options = QUESTIONS[question]
    pieces = {name: iter(value) for name, value in options.items() if isinstance(value, list)}
    return server.call(method, path, **{**options, **pieces})


def plain(response: requests.Response) -> bytes:
    """An answer's body without times, ports, and the threads that the workers share out."""
    return re.sub(rb'"timing_ms":\{[^}]*\}|127\.0\.0\.1:\d+|"threads":\d+', b"", response.content)


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_answers_as_the_plain_server_does(server: Server, two_workers: Server, question: str) -> None:
    """Status, body and the headers that clients read, by whichever worker it is."""
    expected = ask(server, question)
    for _ in range(2):
        answer = ask(two_workers, question)
        assert (answer.status_code, plain(answer)) == (expected.status_code, plain(expected))
        for header in ("Content-Type", "Content-Encoding", "Inference-Header-Content-Length", "WWW-Authenticate"):
            assert answer.headers.get(header) == expected.headers.get(header), header


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/models/digits/load",
        "/v2/repository/models/digits/unload",
        "/pairing/open",
        "/pairing/close",
        "/pairing/begin",
        "/pairing/finish",
        "/web/ticket",
        "/web/session",
    ],
)
def test_what_would_reach_one_worker_is_refused(two_workers: Server, path: str) -> None:
    """Load, unload, release and pairing change one process; nobody could say which."""
    answer = two_workers.call("POST", path, json={"parameters": {"release": True}})
    assert (answer.status_code, answer.json()["code"]) == (501, "NOT_IMPLEMENTED")


def test_statistics_name_the_worker(two_workers: Server) -> None:
    """Counters are those of one worker: which, they say themselves."""
    assert two_workers.call("GET", "/v2/models/digits/stats").json()["worker"] in ("0", "1")
    lines = [line for line in two_workers.call("GET", "/metrics").text.splitlines() if line[0] != "#"]
    assert lines and all(re.search(r'[{,]worker="[01]"', line) for line in lines)


def test_a_body_without_the_token_is_not_taken(two_workers: Server) -> None:
    """More than a pairing message has is refused before it is read, in a length or in chunks; so is one too large."""
    for body in (bytes(5000), iter([bytes(5000)])):
        answer = requests.post(f"{two_workers.url}/predictions/digits", data=body, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHORIZED")
    connection = http.client.HTTPConnection("127.0.0.1", two_workers.port, timeout=60)
    connection.putrequest("POST", "/predictions/digits")
    connection.putheader("Authorization", f"Bearer {two_workers.token}")
    connection.putheader("Content-Length", str(2**31))
    connection.endheaders(b"x")
    refusal = connection.getresponse()
    assert (refusal.status, json.loads(refusal.read())["code"]) == (413, "BODY_TOO_LARGE")
    connection.close()


def test_settings_and_files_are_those_of_serve(two_workers: Server) -> None:
    """The run file shows clients whose the port is; each worker has a folder of its own."""
    state = two_workers.log.parent / "state"
    run = json.loads((state / "runs" / f"{two_workers.process.pid}.json").read_text())
    assert run["http"] == f"127.0.0.1:{two_workers.port}" and run["models_dir"] == str(MODELS)
    assert sorted(path.name for path in (state / "workers").iterdir()) == ["0", "1"]
    assert len(set(workers_of(two_workers))) == 2 and two_workers.ready["pid"] == two_workers.process.pid


def test_the_document_has_the_command() -> None:
    """What these tests start is what a reader is told to."""
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert f"POCKETSERVE_MODELS_DIR=mymodels gunicorn {' '.join(COMMAND[3:])} --workers 2" in text


def test_one_that_is_loaded_at_start(tmp_path: Path) -> None:
    """With ``load`` a worker accepts requests once the model is there."""
    with gunicorn(tmp_path, MODELS, workers=1, POCKETSERVE_LOAD="petals") as server:
        index = server.call("POST", "/v2/repository/index").json()
    assert [entry["name"] for entry in index if entry.get("loaded")] == ["petals"]
