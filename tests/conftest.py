"""Fixtures that several parts of the suite share, and the table of what was and was not run."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from framed import Framed

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"
START_TIMEOUT_S = 60.0
STATE = Path(tempfile.mkdtemp(prefix="pocketserve-tests-"))
"""The state folder of all test servers: a model file is tried once in a run, not once in a server."""

os.environ.setdefault("POCKETSERVE_TFJS_MODULES", str(Path(sys.prefix) / "tfjs"))

atexit.register(shutil.rmtree, STATE, ignore_errors=True)


def find_assets() -> Path | None:
    """The folder of public test models: ``POCKETSERVE_TEST_ASSETS``, else any ``*/assets`` beside the project."""
    named = os.environ.get("POCKETSERVE_TEST_ASSETS")
    candidates = [Path(named)] if named else sorted(ROOT.parent.glob("*/assets"))
    return next((path for path in candidates if (path / "MANIFEST.json").is_file()), None)


def find_hostile() -> Path | None:
    """The folder of harmful model files, which lies beside the assets."""
    assets = find_assets()
    hostile = assets.parent / "hostile" if assets is not None else None
    return hostile if hostile is not None and hostile.is_dir() else None


@dataclass
class Server:
    """A running server process.

    Attributes:
        url: such as ``http://127.0.0.1:40123``.
        token: what it asks for; None when it asks for none.
    """

    process: subprocess.Popen[bytes]
    url: str
    token: str | None
    ready: dict[str, Any]
    log: Path
    session: requests.Session = field(default_factory=requests.Session)

    @property
    def port(self) -> int:
        """The HTTP port."""
        port: int = self.ready["http"]["port"]
        return port

    @property
    def socket_port(self) -> int:
        """The port of the socket protocol."""
        port: int = self.ready["socket"]["port"]
        return port

    def connect(self, **options: Any) -> Framed:
        """A greeted connection of the socket protocol."""
        return Framed(self.socket_port, self.token, **options)

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send one request with the token."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        headers |= options.pop("headers", {})
        return self.session.request(method, self.url + path, headers=headers, timeout=60, **options)

    def stop(self) -> int:
        """End it with SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.session.close()
        return self.process.wait(20)


def start_server(folder: Path, models: Path, *options: str, environment: dict[str, str] | None = None) -> Server:
    """Start a real server on a free port and wait until it is ready.

    Args:
        folder: an empty folder for its token, ready file and log.
    """
    ready, token, log = folder / "ready.json", folder / "token", folder / "server.log"
    command = [sys.executable, "-m", "pocketserve", "serve", str(models), "--http-port", "0", "--socket-port", "0"]
    command += ["--ready-file", str(ready), "--token-file", str(token), *options]
    surroundings = {**os.environ, "POCKETSERVE_STATE_DIR": str(STATE), **(environment or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=surroundings)
    ends = time.monotonic() + START_TIMEOUT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > ends:
            process.kill()
            raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')}")
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    content = json.loads(ready.read_text())
    url = f"http://{content['http']['host']}:{content['http']['port']}"
    secret = token.read_text().strip() if token.exists() else None
    return Server(process, url, secret, content, log)


StartServer = Callable[..., Server]


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers that live until the test ends: ``new_server(models, *options)``."""
    started: list[Server] = []

    def start(models: Path, *options: str, environment: dict[str, str] | None = None) -> Server:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        started.append(start_server(folder, models, *options, environment=environment))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server on the embedded models for all tests that leave its state as they found it."""
    running = start_server(tmp_path_factory.mktemp("server"), MODELS)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of public test models; tests that need it are marked ``assets``."""
    found = find_assets()
    assert found is not None, "tests marked 'assets' are deselected where the folder is missing"
    return found


@pytest.fixture(scope="session")
def asset_server(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server on the public TFLite files."""
    running = start_server(tmp_path_factory.mktemp("asset-server"), assets / "models" / "tflite")
    yield running
    assert running.stop() == 0


@pytest.fixture
def models_copy(tmp_path: Path) -> Path:
    """A copy of the embedded models that a test may change."""
    copy = tmp_path / "models"
    for name in ("digits", "diabetes", "petals"):
        shutil.copytree(MODELS / name, copy / name)
    return copy


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In a run that must be complete (``make test-all``), a skipped test is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("POCKETSERVE_TEST_EVERYTHING") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# The end of a run says what was left out and why: nothing is skipped in silence.

_not_run: Counter[str] = Counter()
_MARKS = (
    "assets",
    "onnx",
    "torch",
    "tensorflow",
    "tfjs",
    "compiler",
    "java",
    "conformance",
    "wheel",
    "simulated",
    "soak",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs the asset folder where there is none."""
    if find_assets() is not None:
        return
    missing = [item for item in items if item.get_closest_marker("assets")]
    config.hook.pytest_deselected(items=missing)
    items[:] = [item for item in items if item not in missing]


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left out, by the mark that caused it."""
    for item in items:
        marks = [mark for mark in _MARKS if item.get_closest_marker(mark)]
        _not_run[", ".join(marks) or "not chosen"] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table."""
    terminalreporter.section("what was run")
    run = sum(len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed", "error"))
    terminalreporter.write_line(f"{'run':32}{run:6}")
    for marks, count in sorted(_not_run.items()):
        reason = "" if find_assets() or "assets" not in marks else "  (the folder of test models was not found)"
        terminalreporter.write_line(f"{'not run: ' + marks:32}{count:6}{reason}")
