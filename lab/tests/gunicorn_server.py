"""Run a real gunicorn with our application on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conftest import START_TIMEOUT_S, Server

COMMAND = (
    sys.executable,
    "-m",
    "gunicorn",
    "-c",
    "python:pocketserve_scale.gunicorn",
)
Settings = dict[str, str]


def server_variables(folder: Path, models: Path, **settings: str) -> Settings:
    """Return the environment of a server whose files are in an empty folder."""
    own = {
        "POCKETSERVE_MODELS_DIR": str(models),
        "POCKETSERVE_STATE_DIR": str(folder / "state"),
        "POCKETSERVE_TOKEN_FILE": str(folder / "token"),
        "POCKETSERVE_READY_FILE": str(folder / "ready.json"),
        "POCKETSERVE_HTTP_PORT": "0",
        # the embedded models and those of tests are trusted
        "POCKETSERVE_QUARANTINE": "0",
    }
    return {
        **os.environ,
        **own,
        **settings,
    }


@contextlib.contextmanager
def gunicorn(
    folder: Path, models: Path, workers: int = 2, **settings: str
) -> Iterator[Server]:
    """Start gunicorn, wait until it accepts requests, and stop it."""
    log = folder / "server.log"
    ready = folder / "ready.json"
    with log.open("wb") as output:
        command = [*COMMAND, "--workers", str(workers)]
        environment = server_variables(folder, models, **settings)
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment
        )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text(errors="replace")
        content = json.loads(ready.read_text())
        url = f"http://127.0.0.1:{content['http']['port']}"
        server = Server(
            process, url, (folder / "token").read_text().strip(), content, log
        )
        wait_until(lambda: len(workers_of(server)) == workers, log)
        yield server
        assert server.stop() == 0, log.read_text(errors="replace")
    finally:
        process.kill()
        process.wait()


def workers_of(server: Server) -> list[int]:
    """Return the process ids of its workers."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def wait_until(
    condition: Callable[[], Any], log: Path, seconds: float = START_TIMEOUT_S
) -> None:
    """Wait for another process, with a deadline."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        pause.wait(0.02)
