"""Check thousands of concurrent answers over both transports.

The load mixes batched and unbatched models, rows, lengths, plain, camera and urgent
requests. Every second request has an id of its own; each answer is compared with the
answer to the same request alone. Requests without an id share their JSON and wait
without a thread in long queues.
"""

from __future__ import annotations

import http.client
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MODELS, Server, StartServer
from pocketserve.engine.scheduling.batching import agrees
from pocketserve.tensors import Array, to_array, to_tensor
from pocketserve_wire import oip
from pocketserve_wire.oip import InferRequest
from soaking import note, rounds

pytestmark = [pytest.mark.live, pytest.mark.soak]

REQUESTS = int(os.environ.get("POCKETSERVE_SOAK_REQUESTS", rounds(20_000, 200_000)))
ALLOWED_S = 300.0
"""Takes well under half a minute on two cores; a server that hangs fails after this
time.
"""

HTTP_SHARE = 0.1
"""HTTP costs several times as much as the socket, most of it in the client."""

PEERS = 4
UNDER_WAY = 12
"""Socket connections and pending requests on each.

HTTP uses as many connections, and all fit.
"""

MODELS_ASKED = {
    "digits/versions/tflite": ("image", (8, 8, 1)),
    "digits/versions/tflite-int8": ("image", (8, 8, 1)),
    "petals/versions/tflite": ("features", (3,)),
    "diabetes/versions/tflite": ("features", (10,)),
    "alone/versions/tflite": ("features", (3,)),
}
BATCHED = ("digits", "tflite")
ALONE = ("alone", "tflite")
ID = b'"id":"00000000"'
Outcome = Counter[str]


@dataclass(frozen=True)
class Case:
    """A request and its answer without concurrent load.

    Attributes:
        body: contains :data:`ID` in place of its own id.
    """

    path: str
    body: bytes
    json_length: int
    expected: Array

    def numbered(self, number: int) -> bytes:
        """Return the body with an id."""
        return self.body.replace(ID, b'"id":"%08d"' % _id(number))

    def judge(
        self, number: int, status: int, body: bytes, json_length: int | None
    ) -> str:
        """Classify an answer as right, WRONG, another request's, or an error status."""
        if status != 200:
            return str(status)
        answer = oip.decode_infer_response(body, json_length)
        if (
            answer.id != f"{_id(number):08d}"
            or answer.model_name != self.path.split("/")[0]
        ):
            return "SOMEBODY ELSE'S"
        found = to_array(answer.outputs[0])
        if agrees({"y": found}, {"y": self.expected}):
            return "right"
        return "WRONG"


Job = tuple[Callable[[Server, list[Case], int, int], Outcome], int]


def _id(number: int) -> int:
    return number * (number % 2)


def make_request(path: str, number: int, draw: np.random.Generator) -> InferRequest:
    """Return a request of one to three rows, sometimes of a camera or urgent."""
    name, shape = MODELS_ASKED[path]
    largest = 5
    if name == "image":
        largest = 1
    rows = draw.random((1 + number % 3, *shape), np.float32) * largest
    parameters: dict[str, Any] = {}
    if number % 10 == 0:
        parameters["stream"] = f"s{number % 4}"
    elif number % 10 == 1:
        parameters["priority"] = 1 + number % 8
    return InferRequest(
        inputs=[to_tensor(name, rows)],
        parameters=parameters,
        id="00000000",
        binary_output=True,
    )


def make_case(server: Server, path: str, request: InferRequest) -> Case:
    """Return a request with its answer without load."""
    encoded = oip.encode_infer_request(request)
    body = b"".join(encoded.chunks)
    assert encoded.json_length is not None
    assert body.count(ID) == 1
    target = f"POST /v2/models/{path}/infer"
    with server.connect() as peer:
        answer = peer.call(target, body, json_length=encoded.json_length)
    assert answer.status == 200, answer.body
    response = oip.decode_infer_response(answer.body, answer.json_length)
    return Case(path, body, encoded.json_length, to_array(response.outputs[0]))


def make_cases(server: Server) -> list[Case]:
    """Return inputs of one to three rows, some from a camera and some urgent."""
    draw = np.random.default_rng(2)
    listed = []
    for path in MODELS_ASKED:
        for number in range(120):
            request = make_request(path, number, draw)
            listed.append(make_case(server, path, request))
    return listed


def ask_socket(server: Server, cases: list[Case], count: int, seed: int) -> Outcome:
    """Send overlapping requests on one connection.

    Answers come in any order.
    """
    draw = random.Random(seed)
    ended = Outcome()
    deadline = time.monotonic() + ALLOWED_S
    under_way: dict[int, Case] = {}
    with server.connect() as peer:
        for left in range(count, -UNDER_WAY, -1):
            if left > 0:
                case = draw.choice(cases)
                body = case.numbered(peer.last_id + 1)
                target = f"POST /v2/models/{case.path}/infer"
                number = peer.ask(target, body, json_length=case.json_length)
                under_way[number] = case
            if under_way and (left <= 0 or len(under_way) >= UNDER_WAY):
                answer = peer.answer()
                number = answer.request_id
                case = under_way.pop(number)
                length = answer.json_length
                judged = case.judge(number, answer.status, answer.body, length)
                ended[judged] += 1
            assert time.monotonic() < deadline
    assert not under_way
    return ended


def ask_http(server: Server, cases: list[Case], count: int, seed: int) -> Outcome:
    """Send one request after the other on one connection."""
    draw = random.Random(seed)
    ended = Outcome()
    deadline = time.monotonic() + ALLOWED_S
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    for number in range(1, count + 1):
        case = draw.choice(cases)
        headers = {
            "Authorization": f"Bearer {server.token}",
            "Inference-Header-Content-Length": str(case.json_length),
        }
        connection.request(
            "POST", f"/v2/models/{case.path}/infer", case.numbered(number), headers
        )
        answer = connection.getresponse()
        body = answer.read()
        length = answer.getheader("Inference-Header-Content-Length")
        ended[
            case.judge(number, answer.status, body, int(length) if length else None)
        ] += 1
        assert time.monotonic() < deadline
    connection.close()
    return ended


@pytest.fixture
def models(models_copy: Path) -> Path:
    """Return the embedded models and a copy of one without batching."""
    shutil.copytree(MODELS / "petals", models_copy / "alone")
    manifest = models_copy / "alone" / "model.toml"
    manifest.write_text("batching = false\n" + manifest.read_text())
    return models_copy


def request_and_run_counts(server: Server, name: str, version: str) -> tuple[int, int]:
    """Return a version's answered requests and its model's runs."""
    [found] = server.call("GET", f"/v2/models/{name}/versions/{version}/stats").json()[
        "model_stats"
    ]
    return found["inference_stats"]["success"]["count"], found["execution_count"]


def run_jobs(server: Server, jobs: list[Job]) -> Outcome:
    """Run jobs at once; return the number of each outcome."""
    cases = make_cases(server)
    ended = Outcome()
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = []
        for seed, (job, count) in enumerate(jobs):
            futures.append(pool.submit(job, server, cases, count, seed))
        for future in futures:
            ended += future.result()
    return ended


def print_runs(server: Server) -> None:
    """Print the requests and runs of each version."""
    for path in MODELS_ASKED:
        name, _, version = path.split("/")
        answers, runs = request_and_run_counts(server, name, version)
        print(path, f"{answers} answers in {runs} runs")


def test_each_request_gets_its_own_answer(
    new_server: StartServer, models: Path
) -> None:
    server = new_server(models)
    over_http = int(REQUESTS * HTTP_SHARE) // PEERS
    over_socket = REQUESTS // PEERS - over_http
    jobs: list[Job] = [(ask_socket, over_socket), (ask_http, over_http)] * PEERS
    began = time.monotonic()
    ended = run_jobs(server, jobs)
    print(f"\n{dict(ended)} in {time.monotonic() - began:.0f} s")
    print_runs(server)
    note(
        "requests at once, both transports, content compared",
        f"{dict(ended)} (409: replaced in its stream)",
    )
    # requests of a stream that a newer one replaced
    assert set(ended) <= {"right", "409"}
    assert ended.total() == PEERS * (over_http + over_socket)
    assert ended["right"] >= 0.9 * ended.total()
    # Some requests were batched, but none of the model that forbids it.
    answers, runs = request_and_run_counts(server, *BATCHED)
    assert runs < answers
    answers, runs = request_and_run_counts(server, *ALONE)
    assert runs == answers
