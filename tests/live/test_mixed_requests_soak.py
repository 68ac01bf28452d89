"""Mixed requests of many threads at once: everyone gets the answer to their own input, or their own error.

No two requests are alike. What is right is computed here in float64 from the models' weights, without the server. Each
thread keeps several requests under way in different ways: tensors as JSON and as bytes, V1, raw inputs, and calls that
are only waited for later. All threads share one client of each transport.
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
"""It takes some minutes on two cores with the full count; a server that hangs is noticed after this."""

THREADS, HANDFUL = 12, 5
"""Of each thread's requests so many are begun before the first answer is looked at. The queue has room for all."""

REFUSED_SHARE = 0.1
INPUTS = {
    "petals": ("features", (3,)),
    "diabetes": ("features", (10,)),
    "digits": ("image", (8, 8, 1)),
}
BAD_SHAPE, BAD_MODEL = ("INVALID_TENSOR", "INVALID_INPUT"), ("MODEL_NOT_FOUND",)

Array = npt.NDArray[Any]
Fetch = Callable[[], Array]


@dataclass(frozen=True)
class Question:
    """Rows for a model, and what is right.

    Attributes:
        expected: None where the request is to be refused.
        codes: one of these says why it was refused.
        own: what only the error of this request contains.
    """

    model: str
    rows: Array
    expected: Array | None
    codes: tuple[str, ...] = ()
    own: str = ""

    @property
    def tensor(self) -> str:
        """The input's name."""
        return INPUTS.get(self.model, ("features",))[0]

    def judge(self, fetch: Fetch) -> str:
        """Wait for the answer; what it is."""
        try:
            answer = fetch()
        except ServerError as error:
            is_own = error.code in self.codes and re.search(
                rf"\b{self.own}\b", str(error)
            )
            return "refused rightly" if is_own else f"WRONG ERROR {error}"
        return (
            "right"
            if self.expected is not None and agree(answer, self.expected)
            else "WRONG"
        )


def agree(answer: Array, expected: Array) -> bool:
    """Whether an answer has the expected shape and values."""
    return answer.shape == expected.shape and np.allclose(
        answer, expected, rtol=1e-4, atol=1e-4
    )


@cache
def weights(model: str) -> dict[str, Array]:
    """The matrices of an embedded model, from its safetensors file."""
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
    """What a model answers to rows, by its definition in ``model.py``."""
    given, values = weights(model), rows.astype(np.float64)
    if model != "digits":
        return np.asarray(values @ given["weight"].T + given["bias"])
    for layer, is_pooled in (("conv1", False), ("conv2", True), ("conv3", True)):
        values = convolve(values, given[f"{layer}.weight"], given[f"{layer}.bias"])
        if is_pooled:
            count, height, width, channels = values.shape
            values = values.reshape(count, height // 2, 2, width // 2, 2, channels).max(
                axis=(2, 4)
            )
    powers = np.exp(
        values.reshape(len(values), -1) @ given["dense.weight"].T + given["dense.bias"]
    )
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def convolve(values: Array, kernel: Array, bias: Array) -> Array:
    """A 3 x 3 convolution that keeps the size, and what is above 0 of it; channels come last."""
    padded = np.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.maximum(
        np.tensordot(windows, kernel, axes=((3, 4, 5), (1, 2, 3))) + bias, 0
    )


def draw_question(draw: np.random.Generator, number: int) -> Question:
    """A question of one to three rows that nobody else asks; ``number`` is nobody else's."""
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
    width = 31 + 30 * (number % 31)  # no multiple of 3 or 10, which would be whole rows
    rows = np.ones((1, width), np.float32)
    return Question(
        str(draw.choice(["petals", "diabetes"])), rows, None, BAD_SHAPE, str(width)
    )


class Caller:
    """What one thread asks by: clients that all share, and an HTTP connection of its own."""

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
    """Tensors as bytes, asked when the answer is wanted."""
    return lambda: only(client.infer(question.model, {question.tensor: question.rows}))


def infer_later(client: Client, question: Question) -> Fetch:
    """Tensors as bytes, on their way at once."""
    call = client.async_infer(question.model, {question.tensor: question.rows})
    return lambda: only(call.result())


def predict(client: Client, question: Question) -> Fetch:
    """Raw input, asked when the answer is wanted."""
    if question.model == "digits":  # a picture is one row
        return infer(client, question)
    return lambda: targets(client.predict(question.model, question.rows.tolist()))


def predict_later(client: Client, question: Question) -> Fetch:
    """Raw input, on its way at once."""
    if question.model == "digits":
        return infer_later(client, question)
    call = client.async_predict(question.model, question.rows.tolist())
    return lambda: targets(call.result())


def only(outputs: dict[str, Array]) -> Array:
    """The one output."""
    [output] = outputs.values()
    return output


def targets(answer: dict[str, Any]) -> Array:
    """The values of a labelled answer, a row each."""
    return np.array([[entry["value"]] for entry in answer["predictions"]])


def work(
    server: Server, shared: dict[str, Client], thread: int, count: int
) -> Counter[str]:
    """Ask so many questions, a handful at a time, and take the answers in another order."""
    draw, order, outcomes = (
        np.random.default_rng((7, thread)),
        random.Random(thread),
        Counter[str](),
    )
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


def test_somebody_elses_answer_would_be_noticed() -> None:
    draw = np.random.default_rng(11)
    for model, (_, shape) in INPUTS.items():
        answers = [
            compute(model, draw.random((1, *shape), np.float32)) for _ in range(500)
        ]
        assert sum(agree(one, other) for one, other in pairwise(answers)) <= 5


@pytest.mark.live
def test_everyone_gets_their_own_answer_or_error(server: Server) -> None:
    outcomes, begin = Counter[str](), time.monotonic()
    urls = {"socket": f"socket://127.0.0.1:{server.socket_port}", "http": server.url}
    shared = {
        name: Client(url, token=server.token, reconnect=0) for name, url in urls.items()
    }
    counts = [
        REQUESTS // THREADS + (thread < REQUESTS % THREADS) for thread in range(THREADS)
    ]
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
