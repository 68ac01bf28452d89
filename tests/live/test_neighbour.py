"""A server adapts to the battery and to the cores that other programs leave it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import MODELS, Server
from framed import Framed
from pocketserve_wire.frames import Extension, encode_retry_after

pytestmark = pytest.mark.live

TIMEOUT_S = 120.0
ROW = [5.8, 3.0, 4.3]
TENSOR = {
    "name": "features",
    "datatype": "FP32",
    "shape": [1, 3],
    "data": ROW,
}


def metrics(server: Server) -> dict[str, float]:
    """Return the samples of ``/metrics`` by name and labels."""
    text = server.call("GET", "/metrics").text
    return {
        key: float(value)
        for key, value in re.findall(r"^(pocketserve_\S+) (\S+)$", text, re.MULTILINE)
    }


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline


def low(reason: str) -> str:
    return f'pocketserve_low_power{{reason="{reason}"}}'


def threads(version: str = "tflite") -> str:
    return f'pocketserve_model_threads{{model="petals",version="{version}"}}'


BACKGROUND = {
    "/v2/models/petals/infer": {"inputs": [TENSOR], "parameters": {"priority": 6}},
    "/predictions/petals?priority=6": ROW,
    "/v1/models/petals:predict?priority=4294967295": {"instances": [ROW]},
}
URGENT = {
    "/v2/models/petals/infer": {"inputs": [TENSOR]},
    "/predictions/petals?priority=5": ROW,
    "/v1/models/petals:predict": {"instances": [ROW]},
}


def assert_background_is_rejected(server, peer, path, document):
    """Check that both transports reject a background request with a retry time."""
    rejected = server.call("POST", path, json=document)
    assert rejected.status_code == 503, rejected.text
    assert rejected.headers["Retry-After"] == "60"
    assert rejected.json()["code"] == "LOW_POWER"
    assert "--low-power off" in rejected.json()["error"]
    answer = peer.call(f"POST {path}", json.dumps(document).encode())
    assert answer.status == 503
    assert answer.document == rejected.json()
    assert answer.ext[Extension.RETRY_AFTER_MS] == encode_retry_after(60_000)


def test_low_power_over_both_transports(new_server):
    """The setting halves the threads and rejects background requests with a retry time."""
    server = new_server(MODELS, "--low-power", "on", "--threads", "4")
    with server.connect() as peer:
        for path, document in BACKGROUND.items():
            assert_background_is_rejected(server, peer, path, document)
        infer = "/v2/models/petals/infer"
        assert server.call("POST", infer, json=URGENT[infer]).ok
        for path, document in URGENT.items():
            assert server.call("POST", path, json=document).status_code == 200
            answer = peer.call(f"POST {path}", json.dumps(document).encode())
            assert answer.status == 200
    found = metrics(server)
    assert found[threads()] == 2
    assert found[low("asked")] == 1
    assert found[low("battery")] == 0
    assert found[low("heat")] == 0
    rejected_requests = (
        'pocketserve_requests_total{model="petals",outcome="refused",version="tflite"}'
    )
    assert found[rejected_requests] == 2 * len(BACKGROUND)
    description = server.call("GET", "/v2").json()
    assert description["low_power"] == "the setting low_power is on"
    health = server.call("GET", "/v2/health/ready").json()
    assert health == {"live": True, "ready": True}
    assert server.stop() == 0


def program(folder: Path, script: str) -> dict[str, str]:
    """Install a fake ``termux-battery-status``; return the environment that finds it."""
    folder.mkdir()
    path = folder / "termux-battery-status"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_a_low_battery_reduces_threads(new_server, tmp_path):
    """Termux's program is run soon after the first request, never before it."""
    runs = tmp_path / "asked"
    status = '{"percentage": 9, "plugged": "UNPLUGGED", "temperature": 30.1}'
    environment = program(tmp_path / "bin", f"echo >> {runs}; echo '{status}'")
    server = new_server(MODELS, "--threads", "2", environment=environment)
    assert metrics(server)[low("battery")] == 0
    assert not runs.exists()

    path = "/predictions/petals"
    assert server.call("POST", path, json=ROW).status_code == 200
    until(lambda: metrics(server)[low("battery")] == 1)
    until(lambda: metrics(server)[threads()] == 1)
    found = metrics(server)
    assert found["pocketserve_memory_budget_bytes"] > 0
    assert found["pocketserve_battery_charge_ratio"] == 0.09
    assert found["pocketserve_battery_celsius"] == 30.1

    rejected = server.call("POST", f"{path}?priority=9", json=ROW)
    assert rejected.status_code == 503
    assert rejected.json()["code"] == "LOW_POWER"
    assert 1 <= int(rejected.headers["Retry-After"]) <= 300
    assert server.call("POST", path, json=ROW).status_code == 200
    log = server.log.read_text()
    assert log.count("low power (the battery is at 9 %)") == 1
    assert "runs with 1 threads now" in log
    assert len(runs.read_text()) == 1
    assert server.stop() == 0


def test_a_battery_program_that_hangs_delays_no_request_and_is_ended(
    new_server, tmp_path
):
    os.mkfifo(tmp_path / "begun")
    environment = program(tmp_path / "bin", f"echo $$ > {tmp_path}/begun; sleep 300")
    server = new_server(MODELS, environment=environment)
    assert server.call("POST", "/predictions/petals", json=ROW).status_code == 200
    pid = int((tmp_path / "begun").read_text())  # it runs now and prints nothing
    with server.connect() as peer:
        assert (
            peer.call(
                "POST /predictions/petals?priority=6", json.dumps(ROW).encode()
            ).status
            == 200
        )
    assert Path(f"/proc/{pid}").exists()
    assert server.stop() == 0
    until(lambda: not runs(pid))


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    return False


@pytest.mark.skipif(
    len(getattr(os, "sched_getaffinity", lambda pid: ())(0)) < 2,
    reason="there is one core only",
)
@pytest.mark.parametrize(
    "version",
    [
        "tflite",
        pytest.param("onnx", marks=pytest.mark.onnx),
    ],
)
def test_threads_follow_the_available_cores(new_server, version):
    """Android restricts every thread of a background app to few cores, and later
    restores them.
    """
    server = new_server(MODELS)
    path = f"/predictions/petals?version={version}"
    before = value(server, path)
    cores = sorted(os.sched_getaffinity(server.process.pid))
    many = metrics(server)[threads(version)]
    with server.connect() as peer:
        for usable, wanted in ((cores[:1], 1.0), (cores, many)):
            bind(server.process.pid, usable)
            until(lambda wanted=wanted: serves_with(server, peer, version, wanted))
            assert metrics(server)["pocketserve_usable_cores"] == len(usable)
            assert value(server, path) == pytest.approx(before)
    assert server.stop() == 0


def value(server: Server, path: str) -> float:
    answer: float = server.call("POST", path, json=ROW).json()["predictions"][0][
        "value"
    ]
    return answer


def bind(pid: int, usable: list[int]) -> None:
    """Bind every thread of a process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread ended meanwhile
            os.sched_setaffinity(int(task.name), usable)


def serves_with(server: Server, peer: Framed, version: str, wanted: float) -> bool:
    """Send a request, which makes the server check its cores.

    Return whether the model has this number of threads.
    """
    answer = peer.call(
        f"POST /predictions/petals?version={version}", json.dumps(ROW).encode()
    )
    assert answer.status == 200
    return metrics(server)[threads(version)] == wanted
