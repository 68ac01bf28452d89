"""Many threads send mixed requests; each gets its own answer or error.

No two requests are alike. The expected answers are computed here in float64 from the
models' weights, without the server. Each thread overlaps several requests in different
ways: tensors as JSON and as bytes, V1, raw inputs and deferred calls. All threads share
one client per transport.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conftest import MODELS, Server
from pocketserve_client import Client, ServerError
from soaking import note, rounds

pytestmark = pytest.mark.soak

REQUESTS = rounds(20_000, 100_000)
ALLOWED_S = 900.0
"""The full count takes some minutes on two cores; a server that hangs fails after this
time.
"""

THREADS = 12
HANDFUL = 5
"""Number of requests that each thread starts before it reads an answer.

All fit in the queue.
"""

REFUSED_SHARE = 0.1
INPUTS = {
    "petals": ("features", (3,)),
    "diabetes": ("features", (10,)),
    "digits": ("image", (8, 8, 1)),
}
BAD_SHAPE = ("INVALID_TENSOR", "INVALID_INPUT")
BAD_MODEL = ("MODEL_NOT_FOUND",)

Array = npt.NDArray[Any]
Fetch = Callable[[], Array]


@dataclass(frozen=True)
class Question:
    """Rows for a model and the expected answer.

    Attributes:
        expected: None if the request must be rejected.
        codes: the possible error codes of a rejected request.
        own: text that only this request's error contains.
    """

    model: str
    rows: Array
    expected: Array | None
    codes: tuple[str, ...] = ()
    own: str = ""

    @property
    def tensor(self) -> str:
        """Return the input's name."""
        return INPUTS.get(self.model, ("features",))[0]

    def judge(self, fetch: Fetch) -> str:
        """Wait for the answer and classify it."""
        try:
            answer = fetch()
        except ServerError as error:
            is_own = error.code in self.codes and re.search(
                rf"\b{self.own}\b", str(error)
            )
            if is_own:
                return "refused rightly"
            return f"WRONG ERROR {error}"
        if self.expected is not None and agree(answer, self.expected):
            return "right"
        return "WRONG"


def agree(answer: Array, expected: Array) -> bool:
    """Return whether an answer has the expected shape and values."""
    return answer.shape == expected.shape and np.allclose(
        answer, expected, rtol=1e-4, atol=1e-4
    )


@cache
def weights(model: str) -> dict[str, Array]:
    """Return an embedded model's matrices from its safetensors file."""
    content = (MODELS / model / "weights.safetensors").read_bytes()
    start = 8 + struct.unpack_from("<Q", content)[0]
    arrays = {}
    for name, entry in json.loads(content[8:start]).items():
        first, end = entry["data_offsets"]
        values = np.frombuffer(content[start + first : start + end], "<f4").reshape(
            entry["shape"]
        )
        arrays[name] = values.astype(np.float64)
    return arrays


def compute(model: str, rows: Array) -> Array:
    """Compute a model's answer as defined in its ``model.py``."""
    given = weights(model)
    values = rows.astype(np.float64)
    if model != "digits":
        return np.asarray(values @ given["weight"].T + given["bias"])
    for layer, is_pooled in (
        ("conv1", False),
        ("conv2", True),
        ("conv3", True),
    ):
        values = convolve(values, given[f"{layer}.weight"], given[f"{layer}.bias"])
        if is_pooled:
            count, height, width, channels = values.shape
            values = values.reshape(
                count,
                height // 2,
                2,
                width // 2,
                2,
                channels,
            ).max(axis=(2, 4))
    powers = np.exp(
        values.reshape(len(values), -1) @ given["dense.weight"].T + given["dense.bias"]
    )
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def convolve(values: Array, kernel: Array, bias: Array) -> Array:
    """Apply a 3 x 3 convolution of equal size and a ReLU; channels come last."""
    padded = np.pad(
        values,
        (
            (0, 0),
            (1, 1),
            (1, 1),
            (0, 0),
        ),
    )
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.maximum(
        np.tensordot(windows, kernel, axes=((3, 4, 5), (1, 2, 3))) + bias, 0
    )


def draw_question(draw: np.random.Generator, number: int) -> Question:
    """Return a unique request of one to three rows, derived from ``number``."""
    if draw.random() >= REFUSED_SHARE:
        model = str(draw.choice(list(INPUTS)))
        rows = draw.random((draw.integers(1, 4), *INPUTS[model][1]), np.float32) * (
            1 if model == "digits" else 9
        )
        return Question(model, rows, compute(model, rows))
    if number % 2:
        return Question(
            f"nobody-{number}",
            np.ones((1, 3), np.float32),
            None,
            BAD_MODEL,
            f"nobody-{number}",
        )
    # not a multiple of 3 or 10, which would be whole rows
    width = 31 + 30 * (number % 31)
    rows = np.ones((1, width), np.float32)
    return Question(
        str(draw.choice(["petals", "diabetes"])), rows, None, BAD_SHAPE, str(width)
    )


class Caller:
    """One thread's access: shared clients and an HTTP connection of its own."""

    def __init__(self, server: Server, shared: dict[str, Client]) -> None:
        self._token = server.token
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", server.port, timeout=60
        )
        self.close = self._connection.close
        self.ways: list[Callable[[Question], Fetch]] = [
            lambda question: partial(self._json_tensors, question),
            lambda question: partial(self._v1, question),
        ]
        for client in shared.values():
            self.ways += (
                partial(way, client)
                for way in (infer, infer_later, predict, predict_later)
            )

    def _json_tensors(self, question: Question) -> Array:
        tensor = {
            "name": question.tensor,
            "datatype": "FP32",
            "shape": question.rows.shape,
        }
        content = {"inputs": [{**tensor, "data": question.rows.reshape(-1).tolist()}]}
        [output] = self._post(f"/v2/models/{question.model}/infer", content)["outputs"]
        return np.array(output["data"]).reshape(output["shape"])

    def _v1(self, question: Question) -> Array:
        content = {"instances": question.rows.tolist()}
        return np.array(
            self._post(f"/v1/models/{question.model}:predict", content)["predictions"]
        )

    def _post(self, path: str, content: object) -> Any:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
        }
        self._connection.request("POST", path, json.dumps(content), headers)
        answer = self._connection.getresponse()
        document = json.loads(answer.read())
        if answer.status != 200:
            raise ServerError(answer.status, document["code"], document["error"])
        return document


def infer(client: Client, question: Question) -> Fetch:
    """Return a call that sends tensors as bytes and waits."""
    return lambda: only(client.infer(question.model, {question.tensor: question.rows}))


def infer_later(client: Client, question: Question) -> Fetch:
    """Send tensors as bytes now; return a call that waits."""
    call = client.async_infer(question.model, {question.tensor: question.rows})
    return lambda: only(call.result())


def predict(client: Client, question: Question) -> Fetch:
    """Return a call that sends raw input and waits."""
    if question.model == "digits":  # a picture is one row
        return infer(client, question)
    return lambda: targets(client.predict(question.model, question.rows.tolist()))


def predict_later(client: Client, question: Question) -> Fetch:
    """Send raw input now; return a call that waits."""
    if question.model == "digits":
        return infer_later(client, question)
    call = client.async_predict(question.model, question.rows.tolist())
    return lambda: targets(call.result())


def only(outputs: dict[str, Array]) -> Array:
    """Return the only output."""
    [output] = outputs.values()
    return output


def targets(answer: dict[str, Any]) -> Array:
    """Return a labelled answer's values, one row each."""
    return np.array([[entry["value"]] for entry in answer["predictions"]])


def work(
    server: Server, shared: dict[str, Client], thread: int, count: int
) -> Counter[str]:
    """Send requests, a handful at a time, and read their answers out of order."""
    draw = np.random.default_rng((7, thread))
    order = random.Random(thread)
    outcomes = Counter[str]()
    deadline = time.monotonic() + ALLOWED_S
    with closing(Caller(server, shared)) as caller:
        for begin in range(0, count, HANDFUL):
            numbers = range(begin, min(begin + HANDFUL, count))
            questions = [
                draw_question(draw, THREADS * number + thread) for number in numbers
            ]
            under_way = [
                (question, order.choice(caller.ways)(question))
                for question in questions
            ]
            order.shuffle(under_way)
            outcomes.update(question.judge(fetch) for question, fetch in under_way)
            assert time.monotonic() < deadline
    return outcomes


def test_the_check_detects_a_swapped_answer() -> None:
    draw = np.random.default_rng(11)
    for model, (_, shape) in INPUTS.items():
        answers = [
            compute(model, draw.random((1, *shape), np.float32)) for _ in range(500)
        ]
        assert sum(agree(one, other) for one, other in pairwise(answers)) <= 5


@pytest.mark.live
def test_each_request_gets_its_own_answer_or_error(server: Server) -> None:
    outcomes = Counter[str]()
    begin = time.monotonic()
    urls = {"socket": f"socket://127.0.0.1:{server.socket_port}", "http": server.url}
    shared = {}
    for name, url in urls.items():
        shared[name] = Client(url, token=server.token, reconnect=0)
    counts = []
    for thread in range(THREADS):
        counts.append(REQUESTS // THREADS + (thread < REQUESTS % THREADS))
    with (
        ThreadPoolExecutor(THREADS) as pool,
        closing(shared["socket"]),
        closing(shared["http"]),
    ):
        for part in pool.map(partial(work, server, shared), range(THREADS), counts):
            outcomes += part
    print(f"\n{dict(outcomes)} in {time.monotonic() - begin:.0f} s")
    note(
        "mixed requests of 12 threads, each with an input of its own",
        f"{dict(outcomes)}",
    )
    assert set(outcomes) == {"right", "refused rightly"}
    assert outcomes.total() == REQUESTS
    assert outcomes["refused rightly"] > 0.05 * REQUESTS
