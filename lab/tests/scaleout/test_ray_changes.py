"""Replicas of a real Ray that are killed, replaced and added under load."""

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
    """A folder with one model, whose card tells it apart."""
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
    """Ask by our client until all has ended; return how often it was answered, and the answers. A lost one raises."""
    answered, answers = 0, set()
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
    """Have clients ask all the while; each gets every answer, and the same one."""
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
    """What the model's card says, by whichever replica."""
    text: str = server.call("GET", "/v2/models/petals").json()["parameters"][
        "description"
    ]
    return text


def test_twenty_killed_replicas_lose_nothing(scaled: RayServer) -> None:
    """Our client asks again what a killed replica was answering; Ray starts another one, which takes its folder."""
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
    """Whether there are two replicas again, without the one that was killed."""
    return lambda: len(now := server.replicas()) == 2 and old[0] not in now


def test_a_broken_folder_leaves_the_old_one(
    scaled: RayServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The command says what is wrong; nobody who asks meanwhile notices."""
    broken = with_petals(tmp_path_factory, "broken")
    for file in (broken / "petals").glob("*.tflite"):
        file.write_bytes(b"no model" * 100)
    with under_load(scaled):
        done = scaled.change(broken, "--replicas", "2")
    assert done.returncode == 1 and done.stderr.startswith(
        "pocketserve: load petals: failed to load"
    ), done.stderr
    assert done.stderr.count("\n") == 1
    assert {description(scaled) for _ in range(10)} == {"first"} and len(
        scaled.replicas()
    ) == 2


def test_a_good_folder_takes_over_and_grows_with_the_load(
    scaled: RayServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One replica after another is replaced and nothing is lost; of one to three, load brings a second one."""
    good = with_petals(tmp_path_factory, "second")
    with under_load(scaled):
        done = scaled.change(good, "--replicas", "1..3")
        assert done.returncode == 0, done.stderr
        assert f"serving {good} at {scaled.url} from 1 to 3 replicas" in done.stdout
        wait_until(
            lambda: {description(scaled) for _ in range(5)} == {"second"}, scaled.log
        )
        wait_until(lambda: len(scaled.replicas()) >= 2, scaled.log)


def test_haproxy_in_front(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It takes the requests instead, and a killed replica loses nothing either."""
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
    """Step through sequences, begun anew where a step is refused; return how many were right, and refused."""
    right = refused = total = 0
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]}
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
            refused, total = refused + 1, 0
            continue
        total += 2
        assert answer.json()["outputs"][0]["data"] == [total], "wrong without a word"
        right += 1
    return right, refused


def test_sequences_are_never_wrong_while_replicas_change(tmp_path: Path) -> None:
    """Their replica is killed, and the folder deployed again: each step is right or refused, and they go on."""
    models = tmp_path / "models"
    (models / "sum").mkdir(parents=True)
    running_sum(models / "sum/sum.onnx", 2)
    (models / "sum/model.toml").write_text(FEEDBACK)
    ended = threading.Event()
    with (
        ray_server(tmp_path, models, "--replicas", "1") as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        clients = [
            pool.submit(keep_adding, server, number + 1, ended)
            for number in range(CLIENTS)
        ]
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
    """Whether a new sequence is answered, after which every client had time for a step."""
    only = threading.Event()
    timer = threading.Timer(1.0, only.set)
    timer.start()
    right, refused = keep_adding(server, CLIENTS + 1, only)
    return right > 0 and refused == 0
