"""Compare a real Ray Serve to the plain server."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Server, start_server
from places import MODELS
from questions import LOCAL, QUESTIONS, check_large_bodies, check_same
from ray_server import RayServer, descendants, ray_server
from sequence_models import FEEDBACK, running_sum

pytestmark = [pytest.mark.ray, pytest.mark.live, pytest.mark.alone]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two embedded models, and one that keeps a sum."""
    models = tmp_path_factory.mktemp("models")
    for name in ("digits", "petals"):
        shutil.copytree(MODELS / name, models / name)
    add_sum(models, "sum")
    return models


def add_sum(models: Path, name: str) -> None:
    """Add a model with state, moved into the folder as a whole."""
    hidden = models / f".{name}"
    hidden.mkdir()
    running_sum(hidden / "sum.onnx", 2)
    (hidden / "model.toml").write_text(FEEDBACK)
    hidden.rename(models / name)


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(tmp_path_factory.mktemp("plain"), folder)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def scaled(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RayServer]:
    with ray_server(
        tmp_path_factory.mktemp("ray"), folder, "--replicas", "2"
    ) as server:
        yield server


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_answers_like_the_plain_server(
    plain: Server, scaled: RayServer, question: str
) -> None:
    """Status, body and headers agree for each replica."""
    check_same(question, plain, scaled)


@pytest.mark.parametrize("path", LOCAL)
def test_changes_of_a_single_replica_are_refused(scaled: RayServer, path: str) -> None:
    answer = scaled.call("POST", path, json={"parameters": {"release": True}})
    assert answer.status_code == 501
    assert answer.json()["code"] == "NOT_IMPLEMENTED"


def test_a_body_that_is_too_large_is_not_read(scaled: RayServer) -> None:
    """It is refused by its length, or in unauthenticated chunks."""
    check_large_bodies(scaled)


def test_statistics_name_the_replica(scaled: RayServer) -> None:
    """Each has its own folder and name, and has loaded the models."""
    answers = [
        scaled.call("GET", "/v2/models/digits/stats").json()["worker"]
        for _ in range(20)
    ]
    assert len(set(answers)) == 2 == len(scaled.replicas())
    lines = []
    for line in scaled.call("GET", "/metrics").text.splitlines():
        if line[0] != "#":
            lines.append(line)
    assert lines
    assert all(
        re.search(rf'[{{,]worker="({"|".join(set(answers))})"', line) for line in lines
    )
    assert {path.name for path in (scaled.log.parent / "state/workers").iterdir()} == {
        "0",
        "1",
    }
    index = scaled.call("POST", "/v2/repository/index").json()
    assert {entry["name"] for entry in index if entry.get("loaded")} == {
        "digits",
        "petals",
        "sum",
    }


def step(
    server: Server, number: int, *, start: bool = False, model: str = "sum"
) -> tuple[int, float | str]:
    """Run a sequence's step.

    Return the status, and the sum or error code.
    """
    tensor = {
        "name": "x",
        "shape": [1, 2],
        "datatype": "FP32",
        "data": [1, 1],
    }
    parameters = {"sequence_id": number, "sequence_start": start}
    answer = server.call(
        "POST",
        f"/v2/models/{model}/infer",
        json={"inputs": [tensor], "parameters": parameters},
    )
    document = answer.json()
    return answer.status_code, document["outputs"][0]["data"][
        0
    ] if answer.ok else document["code"]


def test_sequences_work_at_the_path_of_their_model(scaled: RayServer) -> None:
    """One replica answers there, and loses no step."""
    steps = [
        step(scaled, stream + 1, start=place == 0)
        for place in range(12)
        for stream in range(16)
    ]
    assert steps == [(200, 2.0 * (place + 1)) for place in range(12) for _ in range(16)]
    assert len(scaled.replicas("pocketserve-sum")) == 1


def test_sequences_are_refused_at_other_paths(scaled: RayServer, folder: Path) -> None:
    """A model that was added later has no replica of its own."""
    add_sum(folder, "late")
    try:
        steps = [
            step(scaled, stream + 1, start=not place, model="late")
            for place in range(12)
            for stream in range(16)
        ]
        assert set(steps) == {(501, "NOT_IMPLEMENTED")}
        assert len(steps) == 192
        assert step(scaled, 0, model="late") == (200, 2.0)
    finally:
        shutil.rmtree(folder / "late")


def test_every_port_is_on_loopback(scaled: RayServer) -> None:
    """Clients of Ray's own ports can run code with its token."""
    inodes = set()
    for pid in [scaled.process.pid, *descendants(scaled.process.pid)]:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            inodes |= set(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
    listening = [row for row in listeners() if row[1] in inodes]
    assert len(listening) > 5
    assert {row[0] for row in listening} == {"127.0.0.1"}
    token = scaled.log.parent / "state/ray-token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text().strip() != scaled.token


def listeners() -> Iterator[tuple[str, str]]:
    """Return address and inode of each listening socket in /proc/net."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                yield readable(fields[1].partition(":")[0]), fields[9]


def readable(hexadecimal: str) -> str:
    """Return an address of /proc/net, whose 32-bit words are reversed."""
    data = bytes.fromhex(hexadecimal)
    data = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    mapped = bytes(10) + b"\xff\xff"
    if len(data) == 16:
        data = data.removeprefix(mapped)
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
