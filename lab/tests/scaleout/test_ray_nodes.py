"""Run a real Ray with two nodes, one of which may leave."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gunicorn_server import wait_until
from places import MODELS, ROOT
from pocketserve.auth.guard import ensure_token
from pocketserve_client import Client
from ports import free_port
from ray_server import COMMAND, END_TIMEOUT_S, START_TIMEOUT_S, RayServer, own_settings

pytestmark = [pytest.mark.ray, pytest.mark.live, pytest.mark.alone]
CHILD = ROOT / "lab" / "tests" / "children" / "ray_nodes.py"


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[RayServer]:
    """Start two nodes with a replica each.

    The process is the nodes' parent.
    """
    log = folder / "cluster.log"
    port = free_port()
    ensure_token(folder / "state" / "ray-token")
    # As `scale` itself sets them for a Ray of its own.
    ray = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "state" / "ray-token"),
    }
    ray |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    settings = own_settings(folder, MODELS, port, **ray)
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, CHILD],
            env=settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as nodes,
    ):
        assert nodes.stdout is not None
        address = nodes.stdout.readline().decode().strip()
        command = [*COMMAND, str(MODELS), "--replicas", "2", "--address", address]
        done = subprocess.run(
            command,
            env=settings,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        token = (folder / "token").read_text().strip()
        yield RayServer(
            nodes, f"http://127.0.0.1:{port}", token, {"http": {"port": port}}, log
        )
        nodes.communicate(timeout=END_TIMEOUT_S)
    assert nodes.returncode == 0, log.read_text(errors="replace")


def parent(pid: int) -> int:
    """Return a process's parent: for a replica, its node."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def has_two(server: RayServer, workers: set[str]) -> bool:
    """Record the replica behind a new connection; return whether two answered.

    Each node's proxy uses its own replica.
    """
    answer = server.call(
        "GET", "/v2/models/digits/stats", headers={"Connection": "close"}
    )
    if answer.ok:  # a proxy that has just started knows no models
        workers.add(answer.json()["worker"])
    return len(workers) == 2


def test_a_second_node_answers_and_may_leave(tmp_path: Path) -> None:
    """Both answer at one port, and our client loses nothing."""
    with (
        two_nodes(tmp_path) as server,
        Client(server.url, server.token, timeout=END_TIMEOUT_S) as client,
    ):
        assert (
            len({parent(pid) for pid in server.replicas()})
            == 2
            == len(server.replicas())
        )
        workers: set[str] = set()
        wait_until(lambda: has_two(server, workers), server.log)
        expected = client.predict("petals", [5.1, 3.5, 1.4])["predictions"]
        nodes = server.process
        assert nodes.stdin is not None
        assert nodes.stdout is not None
        nodes.stdin.write(b"\n")
        nodes.stdin.flush()
        for _ in range(50):
            assert client.predict("petals", [5.1, 3.5, 1.4])["predictions"] == expected
        assert nodes.stdout.readline() == b"removed\n"
        assert client.predict("petals", [5.1, 3.5, 1.4])["predictions"] == expected
        assert len(server.replicas()) == 1
