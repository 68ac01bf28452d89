"""Kill, replace and add replicas of a real Ray under load."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from gunicorn_server import wait_until
from places import MODELS
from pocketserve_client import Client
from ray_server import RayServer, command_line, descendants, ray_server
from sequence_models import FEEDBACK, running_sum

pytestmark = [pytest.mark.ray, pytest.mark.live, pytest.mark.alone]
CLIENTS = 4
KILLS = 20
ENDING_S = 60.0


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayServer]:
    with ray_server(
        tmp_path_factory.mktemp("ray"), with_petals(tmp_path_factory), "--replicas", "2"
    ) as server:
        yield server


def with_petals(places: pytest.TempPathFactory, description: str = "first") -> Path:
    """Return a folder with one model, identified by its card."""
    models = places.mktemp("models")
    shutil.copytree(MODELS / "petals", models / "petals")
    manifest = models / "petals/model.toml"
    lines = manifest.read_text().splitlines()
    lines = [
        f'description = "{description}"' if line.startswith("description = ") else line
        for line in lines
    ]
    manifest.write_text("\n".join(lines))
    return models


def ask_until(server: RayServer, ended: threading.Event) -> tuple[int, set[float]]:
    """Send requests by our client until all has ended; a lost one raises.

    Returns the number of requests, and the answers.
    """
    answered = 0
    answers = set()
    with Client(
        server.url, server.token, timeout=ENDING_S, reconnect=ENDING_S
    ) as client:
        while not ended.is_set() or not answered:
            answer = client.predict("petals", [5.1, 3.5, 1.4])
            answers.add(round(answer["predictions"][0]["value"], 5))
            answered += 1
    return answered, answers


@contextmanager
def under_load(server: RayServer) -> Iterator[list[Future[tuple[int, set[float]]]]]:
    """Send requests continuously; all answers must be equal."""
    ended = threading.Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask_until, server, ended) for _ in range(CLIENTS)]
        try:
            yield clients
        finally:
            ended.set()
    results = [client.result(ENDING_S) for client in clients]
    assert all(answered for answered, _ in results)
    assert len(set().union(*(answers for _, answers in results))) == 1


def description(server: RayServer) -> str:
    """Return the model card's description from any replica."""
    text: str = server.call("GET", "/v2/models/petals").json()["parameters"][
        "description"
    ]
    return text


def test_twenty_killed_replicas_lose_nothing(scaled: RayServer) -> None:
    """Our client retries, and Ray starts a new replica with the folder."""
    with under_load(scaled):
        for _ in range(KILLS):
            old = scaled.replicas()
            os.kill(old[0], signal.SIGKILL)
            wait_until(replaced(scaled, old), scaled.log)
    assert {path.name for path in (scaled.log.parent / "state/workers").iterdir()} == {
        "0",
        "1",
    }


def replaced(server: RayServer, old: list[int]) -> Callable[[], bool]:
    """Return whether there are two replicas without the killed one."""
    return lambda: len(now := server.replicas()) == 2 and old[0] not in now


def test_a_broken_folder_leaves_the_old_one(
    scaled: RayServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The command explains the fault, and clients notice nothing."""
    broken = with_petals(tmp_path_factory, "broken")
    for file in (broken / "petals").glob("*.tflite"):
        file.write_bytes(b"no model" * 100)
    with under_load(scaled):
        done = scaled.change(broken, "--replicas", "2")
    assert done.returncode == 1 and done.stderr.startswith(
        "pocketserve: load petals: failed to load"
    ), done.stderr
    assert done.stderr.count("\n") == 1
    assert {description(scaled) for _ in range(10)} == {"first"}
    assert len(scaled.replicas()) == 2


def test_a_good_folder_takes_over_and_scales_with_the_load(
    scaled: RayServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Replicas are replaced one by one without losses.

    Load adds a second one.
    """
    good = with_petals(tmp_path_factory, "second")
    with under_load(scaled):
        done = scaled.change(good, "--replicas", "1..3")
        assert done.returncode == 0, done.stderr
        assert f"serving {good} at {scaled.url} from 1 to 3 replicas" in done.stdout
        wait_until(
            lambda: {description(scaled) for _ in range(5)} == {"second"}, scaled.log
        )
        wait_until(lambda: len(scaled.replicas()) >= 2, scaled.log)


def test_haproxy_in_front_loses_nothing(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It accepts the requests instead, and survives a killed replica."""
    with ray_server(
        tmp_path, with_petals(tmp_path_factory), "--replicas", "2", "--haproxy"
    ) as server:
        assert any(
            command_line(pid).split()[:1][0].endswith("haproxy")
            for pid in descendants(server.process.pid)
        )
        with under_load(server):
            old = server.replicas()
            os.kill(old[0], signal.SIGKILL)
            wait_until(replaced(server, old), server.log)
        assert description(server) == "first"


def keep_adding(
    server: RayServer, number: int, ended: threading.Event
) -> tuple[int, int]:
    """Run sequences, restarted when refused; return the counts of right and refused
    steps.
    """
    right = refused = total = 0
    tensor = {
        "name": "x",
        "shape": [1, 2],
        "datatype": "FP32",
        "data": [1, 1],
    }
    headers = {"Authorization": f"Bearer {server.token}"}
    while not ended.is_set():
        body = {
            "inputs": [tensor],
            "parameters": {"sequence_id": number, "sequence_start": not total},
        }
        answer = requests.post(
            f"{server.url}/v2/models/sum/infer",
            json=body,
            headers=headers,
            timeout=ENDING_S,
        )
        if not answer.ok:
            refused = refused + 1
            total = 0
            continue
        total += 2
        assert answer.json()["outputs"][0]["data"] == [total], "wrong without a word"
        right += 1
    return right, refused


def test_sequences_are_never_wrong_while_replicas_change(tmp_path: Path) -> None:
    """Replicas are killed and redeployed: each step is right or refused."""
    models = tmp_path / "models"
    (models / "sum").mkdir(parents=True)
    running_sum(models / "sum/sum.onnx", 2)
    (models / "sum/model.toml").write_text(FEEDBACK)
    ended = threading.Event()
    with (
        ray_server(tmp_path, models, "--replicas", "1") as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        clients = []
        for number in range(CLIENTS):
            clients.append(pool.submit(keep_adding, server, number + 1, ended))
        try:
            old = server.replicas("pocketserve-sum")
            os.kill(old[0], signal.SIGKILL)
            wait_until(
                lambda: set(server.replicas("pocketserve-sum")) - set(old), server.log
            )
            done = server.change(models, "--replicas", "2")
            assert done.returncode == 0, done.stderr
            wait_until(lambda: added_alone(server), server.log)
        finally:
            ended.set()
        results = [client.result(ENDING_S) for client in clients]
    assert all(right and refused for right, refused in results), results


def added_alone(server: RayServer) -> bool:
    """Return whether a new sequence works, with time for each client's step."""
    only = threading.Event()
    timer = threading.Timer(1.0, only.set)
    timer.start()
    right, refused = keep_adding(server, CLIENTS + 1, only)
    return right > 0 and refused == 0
