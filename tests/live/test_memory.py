"""A server needs little memory when idle, and many requests don't increase it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import MODELS, Server, StartServer
from pocketserve_client import Client

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(),
        reason="resident memory is read from /proc",
    ),
]

BASELINE = (
    "import flask, waitress, numpy, sys; print('ready', flush=True); sys.stdin.read()"
)
FRAMEWORKS = ("torch", "tensorflow", "tflite", "litert", "onnx", "PIL")


def resident_kib(pid: int) -> int:
    """Return a process's resident memory in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has no VmRSS")


def baseline_kib() -> int:
    """Return the memory of Flask, waitress and NumPy alone."""
    with subprocess.Popen(
        [sys.executable, "-c", BASELINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return resident_kib(process.pid)


def test_idle_server_is_small_and_has_no_framework(new_server: StartServer) -> None:
    """An idle server needs at most 1.15 times the three libraries' memory and maps no
    framework.
    """
    server = new_server(MODELS)
    assert resident_kib(server.process.pid) <= 1.15 * baseline_kib()
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert not [
        name
        for name in FRAMEWORKS
        if f"/{name}" in mapped.replace("ai_edge_litert", "litert")
    ]


@pytest.mark.soak
def test_ten_thousand_requests_do_not_increase_memory(new_server: StartServer) -> None:
    """Ten thousand requests of several kinds add at most 2 % to the memory after one
    thousand.
    """
    server = new_server(MODELS)
    _send_rounds(server, 200)
    after_thousand = resident_kib(server.process.pid)
    _send_rounds(server, 1800)
    assert (
        abs(resident_kib(server.process.pid) - after_thousand) <= 0.02 * after_thousand
    )


def _send_rounds(server: Server, rounds: int) -> None:
    """Send a picture, tensors in one and many rows, JSON and an invalid request per
    round.
    """
    picture = (MODELS / "digits" / "samples" / "7.png").read_bytes()
    one = np.zeros((1, 8, 8, 1), np.float32)
    many = np.zeros((16, 8, 8, 1), np.float32)
    with Client(server.url, server.token) as client:
        for _ in range(rounds):
            assert client.predict("digits", picture)["predictions"][0]["label"] == "7"
            assert client.infer("digits", {"image": one})["scores"].shape == (1, 10)
            assert client.infer("digits", {"image": many})["scores"].shape == (16, 10)
            assert (
                client.predict("petals", [5.1, 3.5, 1.4])["task"]
                == "tabular-regression"
            )
            assert (
                server.call("POST", "/v2/models/digits/infer", data=b"{").status_code
                == 400
            )
