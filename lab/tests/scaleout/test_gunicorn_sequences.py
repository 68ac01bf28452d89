"""Sequences behind gunicorn: right with one worker, refused with several, never wrong without a word."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from conftest import Server, StartServer
from gunicorn_server import gunicorn, wait_until, workers_of
from sequence_models import FEEDBACK, running_sum

pytestmark = [pytest.mark.live, pytest.mark.onnx]


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """A folder with one model that keeps a sum."""
    folder = tmp_path / "models" / "sum"
    folder.mkdir(parents=True)
    running_sum(folder / "sum.onnx", 2)
    (folder / "model.toml").write_text(FEEDBACK)
    return folder.parent


def step(
    server: Server, number: int, *, start: bool = False
) -> tuple[int, float | str]:
    """One step of a sequence: the status, and the sum so far or the error's code."""
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]}
    parameters = {"sequence_id": number, "sequence_start": start}
    answer = server.call(
        "POST",
        "/v2/models/sum/infer",
        json={"inputs": [tensor], "parameters": parameters},
    )
    document = answer.json()
    return answer.status_code, document["outputs"][0]["data"][
        0
    ] if answer.ok else document["code"]


def test_with_two_workers_every_step_is_refused(tmp_path: Path, sums: Path) -> None:
    """192 steps, as they come: not one is answered. A request without a sequence is."""
    with gunicorn(tmp_path, sums) as server:
        steps = [
            step(server, stream + 1, start=place == 0)
            for place in range(12)
            for stream in range(16)
        ]
        assert set(steps) == {(501, "NOT_IMPLEMENTED")} and len(steps) == 192
        assert step(server, 0) == (200, 2.0)


def test_with_one_worker_they_are_right_until_another_comes(
    tmp_path: Path, sums: Path
) -> None:
    """192 of 192; a worker that the master is told to add (SIGTTIN) has the rest refused."""
    with gunicorn(tmp_path, sums, workers=1) as server:
        steps = [
            step(server, stream + 1, start=place == 0)
            for place in range(12)
            for stream in range(16)
        ]
        assert steps == [
            (200, 2.0 * (place + 1)) for place in range(12) for _ in range(16)
        ]
        server.process.send_signal(signal.SIGTTIN)
        second = tmp_path / "state" / "workers" / "1"
        wait_until(lambda: len(workers_of(server)) == 2 and second.exists(), server.log)
        wait_until(lambda: step(server, 1) == (501, "NOT_IMPLEMENTED"), server.log)
        assert {step(server, stream + 1) for stream in range(16)} == {
            (501, "NOT_IMPLEMENTED")
        }


def test_a_server_that_is_told_of_others(new_server: StartServer, sums: Path) -> None:
    """``--no-sequences`` refuses each step in a server that knows of no other; other requests are answered."""
    server = new_server(sums, "--no-sequences", "--no-quarantine")
    assert [step(server, 1, start=place == 0) for place in range(12)] == [
        (501, "NOT_IMPLEMENTED")
    ] * 12
    assert step(server, 0) == (200, 2.0)
