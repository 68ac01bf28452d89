"""Kill, stop and add gunicorn's workers, and start broken servers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from conftest import START_TIMEOUT_S, Server
from gunicorn_server import COMMAND, gunicorn, server_variables, wait_until, workers_of
from places import MODELS

pytestmark = pytest.mark.live
CLIENTS = 4
MAX_BROKEN = 100


def ask_until(server: Server, ended: threading.Event) -> tuple[int, int, set[str]]:
    """Send requests until they were answered and all has ended.

    Returns the counts of answers and broken connections, and the answers.
    """
    answered = 0
    broken = 0
    answers = set()
    headers = {"Authorization": f"Bearer {server.token}"}
    with requests.Session() as session:
        while not (ended.is_set() and (answered or broken > MAX_BROKEN)):
            try:
                answer = session.post(
                    f"{server.url}/v1/models/petals:predict",
                    json={"instances": [[5.1, 3.5, 1.4]]},
                    headers=headers,
                    timeout=60,
                )
            except requests.ConnectionError:
                broken += 1
                continue
            answered += 1
            answers.add(f"{answer.status_code} {answer.text}")
    return answered, broken, answers


def kill_first_worker(server: Any) -> None:
    """Kill a worker, and wait until a new one has replaced it."""
    before = workers_of(server)
    os.kill(before[0], signal.SIGKILL)

    def is_replaced() -> bool:
        return len(set(workers_of(server)) - set(before)) == 1

    wait_until(is_replaced, server.log)


def test_a_killed_worker_loses_only_its_current_requests(tmp_path: Path) -> None:
    """Each client loses at most one, and a new worker gets the same number."""
    kills = 3
    slots = tmp_path / "state" / "workers"
    with gunicorn(tmp_path, MODELS) as server, ThreadPoolExecutor(CLIENTS) as pool:
        ended = threading.Event()
        clients = [pool.submit(ask_until, server, ended) for _ in range(CLIENTS)]
        try:
            for _ in range(kills):
                kill_first_worker(server)
        finally:
            ended.set()
        results = [client.result(60) for client in clients]
        assert sorted(path.name for path in slots.iterdir()) == ["0", "1"]

    answers = set()
    for answered, broken, found in results:
        assert answered
        assert broken <= kills, results
        answers |= set(found)
    assert len(answers) == 1
    assert answers.pop().startswith("200 ")


def test_a_request_in_progress_is_answered_before_the_end(tmp_path: Path) -> None:
    """SIGTERM arrives during a body: it is answered, and the server exits with 0."""
    with gunicorn(tmp_path, MODELS) as server:
        server.call("GET", "/v2/models/petals")
        with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
            head = f"POST /predictions/petals HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n"
            connection.sendall(
                f"{head}Content-Length: 15\r\nConnection: close\r\n\r\n[5.1, ".encode()
            )
            # Another connection is answered only by a worker that reads its requests:
            # ours was accepted before.
            assert server.call("GET", "/v2/health/live").ok
            server.process.send_signal(signal.SIGTERM)
            connection.sendall(b"3.5, 1.4]")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"petal_width" in answer
        assert server.process.wait(60) == 0
        assert not (tmp_path / "ready.json").exists()
        assert not list((tmp_path / "state" / "runs").iterdir())


@pytest.mark.parametrize(
    ("options", "settings", "sentence"),
    [
        (
            (),
            {"POCKETSERVE_MODELS_DIR": "/nowhere"},
            "the models folder /nowhere cannot be read",
        ),
        (
            (),
            {"POCKETSERVE_QUEUE_LIMIT": "many"},
            "POCKETSERVE_QUEUE_LIMIT must be a whole number",
        ),
        ((), {"POCKETSERVE_LOAD": "nobody"}, "load nobody: "),
        (("--bind", "0.0.0.0:0"), {"POCKETSERVE_AUTH": "0"}, "works on loopback only"),
    ],
    ids=["no folder", "a bad setting", "an unknown model", "no token on all addresses"],
)
def test_a_failed_start_is_explained_in_one_sentence(
    tmp_path: Path, options: tuple[str, ...], settings: dict[str, str], sentence: str
) -> None:
    environment = server_variables(tmp_path, MODELS, **settings)
    done = subprocess.run(
        [*COMMAND, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def send_slowly(port: int, head: str) -> tuple[int, bytes]:
    """Send a body byte by byte until the server answers or 3,999 bytes were sent.

    Returns:
        The number of sent bytes, and the answer.
    """
    sent = 0
    answer = b""
    start = f"POST /v2/models/petals/infer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    address = ("127.0.0.1", port)
    with socket.create_connection(address, timeout=START_TIMEOUT_S) as peer:
        peer.sendall((start + head).encode())
        with contextlib.suppress(ConnectionError):  # a byte after the end resets it
            while sent < 3999 and not select.select([peer], [], [], 0.05)[0]:
                sent += peer.send(b"x")
            answer = peer.recv(4096)
    return sent, answer


@pytest.mark.parametrize(
    ("head", "refusal"),
    [
        ("Content-Length: 4000\r\n\r\n", b"HTTP/1.1 401 "),
        ("Accept: ", b""),
    ],
    ids=["a body", "a header"],
)
def test_a_slow_body_reaches_the_requests_deadline(
    tmp_path: Path, head: str, refusal: bytes
) -> None:
    """Single bytes renew the connection's timeout only."""
    settings = {"POCKETSERVE_REQUEST_TIMEOUT": "2", "POCKETSERVE_HTTP_THREADS": "1"}
    with gunicorn(tmp_path, MODELS, workers=1, **settings) as server:
        sent, answer = send_slowly(server.port, head)
        assert sent < 3999
        assert answer.startswith(refusal)
        assert bool(answer) == bool(refusal)
        live = requests.get(f"{server.url}/v2/health/live", timeout=START_TIMEOUT_S)
        assert live.status_code == 200


def test_an_ended_worker_refuses_further_connections(tmp_path: Path) -> None:
    """A queued connection gets 503 after worker_exit, and no second service is made."""
    program = """
from io import BytesIO
from pocketserve_scale import wsgi

def ask():
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/v2/health/ready", "HTTP_HOST": "127.0.0.1",
               "REMOTE_ADDR": "127.0.0.1", "wsgi.input": BytesIO(), "wsgi.url_scheme": "http"}
    list(wsgi.app(environ, lambda status, headers: print(status)))

ask()
wsgi.stop()
ask()
"""
    settings = server_variables(tmp_path, MODELS)
    done = subprocess.run(
        [COMMAND[0], "-c", program],
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["200", "503"], (
        done.stderr
    )
