"""Thousands of concurrent requests with shared sessions and batches get their own
answers.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from conftest import MODELS, STATE
from pocketserve.config import Config
from pocketserve.engine.scheduling.batching import agrees
from pocketserve.service import Service
from pocketserve.tensors import Array, to_array, to_tensor
from pocketserve_wire import ApiError
from pocketserve_wire.oip import InferRequest
from queue_entries import infer
from soaking import note, rounds

REQUESTS = int(os.environ.get("POCKETSERVE_SOAK_REQUESTS", rounds(20_000, 200_000)))
THREADS = 24
LANES = [
    ("digits", "tflite"),
    ("digits", "tflite-int8"),
    ("petals", "tflite"),
    ("diabetes", "tflite"),
]
SHAPES = {
    "digits": (8, 8, 1),
    "petals": (3,),
    "diabetes": (10,),
}

Case = tuple[str, str, Array, Array]


def ask(
    service: Service,
    name: str,
    version: str,
    rows: Array,
    parameters: dict[str, object] | None = None,
) -> Array:
    """Send one tensor request."""
    tensor = to_tensor("image" if name == "digits" else "features", rows)
    response = infer(
        service,
        name,
        version,
        InferRequest(inputs=[tensor], parameters=parameters or {}),
    )
    return to_array(response.outputs[0])


def cases(service: Service) -> list[Case]:
    """Return different inputs of one to three rows with their answers without load."""
    draw = np.random.default_rng(1)
    listed = []
    for name, version in LANES:
        largest = 5
        if name == "digits":
            largest = 1
        for number in range(150):
            shape = (1 + number % 3, *SHAPES[name])
            rows = draw.random(shape, np.float32) * largest
            answer = ask(service, name, version, rows)
            listed.append((name, version, rows, answer))
    return listed


def draw_parameters(draw: random.Random) -> dict[str, object]:
    """Return a stream for some requests and a priority for some."""
    parameters: dict[str, object] = {}
    if draw.random() < 0.1:
        parameters["stream"] = f"s{draw.randrange(4)}"
    if draw.random() < 0.1:
        parameters["priority"] = draw.randrange(1, 9)
    return parameters


def is_expected(version: str, found: Array, expected: Array) -> bool:
    """Return whether an answer is right; integers must be equal."""
    if version == "tflite-int8":
        return np.array_equal(found, expected)
    return agrees({"y": found}, {"y": expected})


def send_requests(service: Service, listed: list[Case], seed: int) -> Counter[str]:
    """Send one thread's requests; return the number of each outcome."""
    draw = random.Random(seed)
    ended = Counter[str]()
    for _ in range(REQUESTS // THREADS):
        name, version, rows, expected = draw.choice(listed)
        parameters = draw_parameters(draw)
        try:
            found = ask(service, name, version, rows, parameters)
        except ApiError as error:
            ended[error.code.name] += 1
            continue
        right = is_expected(version, found, expected)
        ended["right" if right else "WRONG"] += 1
    return ended


@pytest.mark.soak
def test_each_request_gets_its_own_answer():
    service = Service(Config(models_dir=MODELS, state_dir=STATE, queue_limit=64))
    listed = cases(service)
    work = functools.partial(send_requests, service, listed)
    began = time.monotonic()
    ended = Counter[str]()
    with ThreadPoolExecutor(THREADS) as pool:
        for counts in pool.map(work, range(THREADS)):
            ended += counts
    statistics = {lane: service.engine.statistics(*lane) for lane in LANES}
    service.close()

    print(f"\n{dict(ended)} in {time.monotonic() - began:.0f} s")
    was_batched = False
    for lane, found in statistics.items():
        sizes = {}
        for size, batch in sorted(found.batches.items()):
            sizes[size] = batch.count
        rows = found.inference_count
        runs = found.execution_count
        print(lane, f"{rows} rows in {runs} runs, by batch size", sizes)
        was_batched |= runs < found.runs.count
    note("requests at once, in the engine", f"{dict(ended)}")
    assert ended["WRONG"] == 0
    assert set(ended) <= {"right", "SUPERSEDED"}
    assert ended.total() == REQUESTS // THREADS * THREADS
    # Some requests of streams are superseded; all others are answered.
    assert ended["right"] >= 0.9 * ended.total()
    assert was_batched
