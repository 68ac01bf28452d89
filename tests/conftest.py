"""Share fixtures among several parts of the suite."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from framed import Framed
from places import MODELS, ROOT, STATE, find_assets, find_hostile

START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 300.0
"""A model's first request and its trial import its framework: minutes with a slow, cold
disk.
"""
os.environ.setdefault("POCKETSERVE_TFJS_MODULES", str(Path(sys.prefix) / "tfjs"))
# Readline sets it in the processes of pytest-xdist, which have no terminal.
os.environ.pop("COLUMNS", None)

__all__ = ["MODELS", "ROOT", "STATE", "find_assets", "find_hostile"]


@dataclass
class Server:
    """A running server process.

    Attributes:
        url: such as ``http://127.0.0.1:40123``.
        token: the required token, or None.
    """

    process: subprocess.Popen[bytes]
    url: str
    token: str | None
    ready: dict[str, Any]
    log: Path
    session: requests.Session = field(default_factory=requests.Session)

    @property
    def port(self) -> int:
        """Return the HTTP port."""
        port: int = self.ready["http"]["port"]
        return port

    @property
    def socket_port(self) -> int:
        """Return the port of the socket protocol."""
        port: int = self.ready["socket"]["port"]
        return port

    def connect(self, **options: Any) -> Framed:
        """Return a greeted connection of the socket protocol."""
        return Framed(self.socket_port, self.token, **options)

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send one request with the token."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        headers |= options.pop("headers", {})
        return self.session.request(
            method, self.url + path, headers=headers, timeout=CALL_TIMEOUT_S, **options
        )

    def stop(self) -> int:
        """Stop it with SIGTERM; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.session.close()
        return self.process.wait(120)


def start_server(
    folder: Path,
    models: Path,
    *options: str,
    environment: dict[str, str] | None = None,
    program: Sequence[str] = ("-m", "pocketserve"),
    python: Path | str = sys.executable,
) -> Server:
    """Start a real server on a free port and wait until it is ready.

    Args:
        folder: an empty folder for the server's token, ready file and log.
        program: the Python program.
        python: an interpreter of an environment with other packages.
    """
    ready = folder / "ready.json"
    token = folder / "token"
    log = folder / "server.log"
    command = [
        str(python),
        *program,
        "serve",
        str(models),
        "--http-port",
        "0",
        "--socket-port",
        "0",
    ]
    command += ["--ready-file", str(ready), "--token-file", str(token), *options]
    surroundings = {
        **os.environ,
        "POCKETSERVE_STATE_DIR": str(STATE),
        **(environment or {}),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=surroundings
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(
                f"the server did not start: {log.read_text(errors='replace')}"
            )
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    content = json.loads(ready.read_text())
    url = f"http://{content['http']['host']}:{content['http']['port']}"
    secret = None
    if token.exists():
        secret = token.read_text().strip()
    return Server(process, url, secret, content, log)


StartServer = Callable[..., Server]


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[StartServer]:
    """Return a function that starts servers for one test: ``new_server(models,
    *options)``.
    """
    started: list[Server] = []

    def start(models: Path, *options: str, **how: Any) -> Server:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        started.append(start_server(folder, models, *options, **how))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Share one server on the embedded models among tests that don't change it."""
    running = start_server(tmp_path_factory.mktemp("server"), MODELS)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def assets() -> Path:
    """Return the public test models, for tests with the mark ``assets``."""
    found = find_assets()
    assert found is not None, (
        "tests marked 'assets' are deselected where the folder is missing"
    )
    return found


@pytest.fixture(scope="session")
def asset_server(
    assets: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Share one server on the public TFLite files."""
    running = start_server(
        tmp_path_factory.mktemp("asset-server"), assets / "models" / "tflite"
    )
    yield running
    assert running.stop() == 0


@pytest.fixture
def models_copy(tmp_path: Path) -> Path:
    """Return a copy of the embedded models that a test may change."""
    copy = tmp_path / "models"
    for name in ("digits", "diabetes", "petals"):
        shutil.copytree(MODELS / name, copy / name)
    return copy
