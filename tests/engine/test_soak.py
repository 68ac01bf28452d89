"""Thousands of concurrent requests with shared sessions and batches get their own
answers.
"""

from __future__ import annotations

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
SHAPES = {"digits": (8, 8, 1), "petals": (3,), "diabetes": (10,)}

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
    draw, listed = np.random.default_rng(1), []
    for name, version in LANES:
        for number in range(150):
            rows = draw.random((1 + number % 3, *SHAPES[name]), np.float32) * (
                1 if name == "digits" else 5
            )
            listed.append((name, version, rows, ask(service, name, version, rows)))
    return listed


@pytest.mark.soak
def test_each_request_gets_its_own_answer():
    service = Service(Config(models_dir=MODELS, state_dir=STATE, queue_limit=64))
    listed = cases(service)

    def work(seed: int) -> Counter[str]:
        draw, ended = random.Random(seed), Counter[str]()
        for _ in range(REQUESTS // THREADS):
            name, version, rows, expected = draw.choice(listed)
            parameters: dict[str, object] = (
                {"stream": f"s{draw.randrange(4)}"} if draw.random() < 0.1 else {}
            )
            if draw.random() < 0.1:
                parameters["priority"] = draw.randrange(1, 9)
            try:
                found = ask(service, name, version, rows, parameters)
            except ApiError as error:
                ended[error.code.name] += 1
                continue
            same = (
                np.array_equal
                if version == "tflite-int8"
                else lambda a, b: agrees({"y": a}, {"y": b})
            )
            ended["right" if same(found, expected) else "WRONG"] += 1
        return ended

    began, ended = time.monotonic(), Counter[str]()
    with ThreadPoolExecutor(THREADS) as pool:
        for counts in pool.map(work, range(THREADS)):
            ended += counts
    statistics = {lane: service.engine.statistics(*lane) for lane in LANES}
    sizes = {lane: {size: batch.count for size, batch in sorted(found.batches.items())}
             for lane, found in statistics.items()}  # fmt: skip
    service.close()
    print(f"\n{dict(ended)} in {time.monotonic() - began:.0f} s")
    for lane, found in statistics.items():
        print(
            lane,
            f"{found.inference_count} rows in {found.execution_count} runs, by batch size",
            sizes[lane],
        )
    note("requests at once, in the engine", f"{dict(ended)}")
    assert ended["WRONG"] == 0
    assert set(ended) <= {"right", "SUPERSEDED"}
    assert ended.total() == REQUESTS // THREADS * THREADS
    # Some requests of streams are superseded; all others are answered.
    assert ended["right"] >= 0.9 * ended.total()
    assert any(
        found.execution_count < found.runs.count for found in statistics.values()
    )
