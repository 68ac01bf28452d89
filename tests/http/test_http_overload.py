"""Other clients of a server whose models have too many HTTP requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
import requests

from conftest import MODELS
from pocketserve.auth.guard import Guard
from pocketserve.config import Config
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve.service import FREE_THREADS, Service
from pocketserve.transports.http.data_plane import create_server_app
from pocketserve.transports.http.server import HttpServer
from queue_entries import run

TIMEOUT_S = 120.0
QUEUE = 4
THREADS = 12
CALLERS = 48
BODY = json.dumps(
    {
        "inputs": [
            {
                "name": "features",
                "datatype": "FP32",
                "shape": [1, 3],
                "data": [5.8, 3.0, 4.3],
            }
        ]
    }
)


class Flooded:
    """A server whose model blocks until released, with more requests than it accepts."""

    def __init__(self, pool: ThreadPoolExecutor, service: Service, port: int) -> None:
        self._pool = pool
        self.service = service
        self.url = f"http://127.0.0.1:{port}"
        self._go = threading.Event()
        assert self.ask() == 200
        self.queue: ModelQueue = service.engine.running("petals", "tflite").queue
        held = threading.Event()

        def hold(session: object) -> None:
            held.set()
            assert self._go.wait(TIMEOUT_S)

        self._held = pool.submit(
            run, self.queue, hold, RequestOptions(monotonic() + TIMEOUT_S)
        )
        assert held.wait(TIMEOUT_S)
        self._refused = threading.Semaphore(0)
        self._asked = [pool.submit(self._ask_and_count) for _ in range(CALLERS)]
        for _ in range(CALLERS - QUEUE):
            assert self._refused.acquire(timeout=TIMEOUT_S)

    def ask(self) -> int:
        """Send one request for the model; return its status."""
        return requests.post(
            f"{self.url}/v2/models/petals/infer", data=BODY, timeout=TIMEOUT_S
        ).status_code

    def get(self, path: str) -> requests.Response:
        """Send one request for anything else."""
        return requests.get(f"{self.url}{path}", timeout=TIMEOUT_S)

    def _ask_and_count(self) -> int:
        status = self.ask()
        if status == 429:
            self._refused.release()
        return status

    def go(self) -> list[int]:
        """Release the model; return all statuses."""
        self._go.set()
        self._held.result(TIMEOUT_S)
        return sorted(future.result(TIMEOUT_S) for future in self._asked)


@pytest.fixture
def flooded() -> Iterator[Flooded]:
    """Return a flooded server."""
    service = Service(
        Config(
            models_dir=MODELS,
            http_port=0,
            queue_limit=QUEUE,
            http_threads=THREADS,
            quarantine=False,
        )
    )
    guard = Guard(None)
    server = HttpServer(create_server_app(service, guard), service.config, guard)
    thread = threading.Thread(target=server.run)
    thread.start()
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        one = None
        try:
            one = Flooded(pool, service, server.port)
            yield one
        finally:
            if one is not None:
                one.go()
            server.stop()
            thread.join(TIMEOUT_S)
            service.close()


def test_health_and_metrics_answer_while_all_queues_are_full(flooded):
    assert flooded.queue.waiting == QUEUE
    for _ in range(3):
        assert flooded.get("/v2/health/live").json() == {"live": True}
        assert flooded.get("/v2/health/ready").status_code == 200
        assert "pocketserve" in flooded.get("/metrics").text
        assert flooded.get("/v2/models/petals/stats").status_code == 200
        assert flooded.ask() == 429
    assert flooded.go() == [200] * QUEUE + [429] * (CALLERS - QUEUE)


def test_queued_requests_of_all_models_leave_threads_free(flooded):
    """Other models' requests use only the room that the first model's queue leaves."""
    entered = threading.Semaphore(0)
    taken = []

    def take() -> None:
        with flooded.service.in_flight():
            taken.append(True)
            entered.release()
            assert flooded._go.wait(TIMEOUT_S)

    free = THREADS - FREE_THREADS - QUEUE
    busy = [flooded._pool.submit(take) for _ in range(free)]
    for _ in range(free):
        assert entered.acquire(timeout=TIMEOUT_S)
    refused = flooded.get("/v2/health/live"), flooded.ask()
    assert refused[0].status_code == 200
    assert refused[1] == 429
    assert flooded.get("/metrics").status_code == 200
    flooded.go()
    for one in busy:
        one.result(TIMEOUT_S)
