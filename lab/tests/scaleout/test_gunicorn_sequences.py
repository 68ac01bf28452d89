"""Run sequences on gunicorn: correct with one worker, refused with several."""

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
    """Return a folder with one model that keeps a sum."""
    folder = tmp_path / "models" / "sum"
    folder.mkdir(parents=True)
    running_sum(folder / "sum.onnx", 2)
    (folder / "model.toml").write_text(FEEDBACK)
    return folder.parent


def step(
    server: Server, number: int, *, start: bool = False
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
        "/v2/models/sum/infer",
        json={"inputs": [tensor], "parameters": parameters},
    )
    document = answer.json()
    return answer.status_code, document["outputs"][0]["data"][
        0
    ] if answer.ok else document["code"]


def test_two_workers_refuse_every_step(tmp_path: Path, sums: Path) -> None:
    """A request without a sequence is answered."""
    with gunicorn(tmp_path, sums) as server:
        steps = [
            step(server, stream + 1, start=place == 0)
            for place in range(12)
            for stream in range(16)
        ]
        assert set(steps) == {(501, "NOT_IMPLEMENTED")}
        assert len(steps) == 192
        assert step(server, 0) == (200, 2.0)


def test_one_worker_answers_until_another_is_added(tmp_path: Path, sums: Path) -> None:
    """Steps are refused once SIGTTIN adds a worker."""
    refused = (501, "NOT_IMPLEMENTED")
    streams = range(1, 17)
    with gunicorn(tmp_path, sums, workers=1) as server:
        for place in range(12):
            for stream in streams:
                answer = step(server, stream, start=place == 0)
                assert answer == (200, 2.0 * (place + 1))

        server.process.send_signal(signal.SIGTTIN)
        second = tmp_path / "state" / "workers" / "1"
        wait_until(lambda: len(workers_of(server)) == 2 and second.exists(), server.log)
        wait_until(lambda: step(server, 1) == refused, server.log)
        for stream in streams:
            assert step(server, stream) == refused


def test_a_server_can_refuse_sequences_by_option(
    new_server: StartServer, sums: Path
) -> None:
    """``--no-sequences`` refuses each step, other requests are answered."""
    server = new_server(sums, "--no-sequences", "--no-quarantine")
    assert [step(server, 1, start=place == 0) for place in range(12)] == [
        (501, "NOT_IMPLEMENTED")
    ] * 12
    assert step(server, 0) == (200, 2.0)
