"""Connections to a shared server, slow requests, and servers in this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

import pytest

import waiting_labels
from conftest import MODELS, STATE
from framed import TIMEOUT_S, Framed
from pocketserve.config import Config
from pocketserve.service import Service
from pocketserve.transports.socket.event_loop import EventLoop
from pocketserve.transports.socket.server import SocketServer
from pocketserve.transports.socket.timeouts import Timeouts

TOKEN = "t" * 43
RESTLESS: dict[str, float] = {
    "quiet": 0.1,
    "lingering": 0.3,
    "wrong_proof": 0.01,
}
"""Ends no connection that a slow machine delays; the protocol's own times are
unchanged.
"""

LABELS = "".join(f"{digit}\n" for digit in range(10))


@pytest.fixture
def peer(server: Any) -> Iterator[Framed]:
    """Return an authenticated connection to the shared server."""
    with server.connect() as connection:
        yield connection


@pytest.fixture(autouse=True)
def _still_answers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after each test that the shared server answers a new client."""
    yield
    if "server" in request.fixturenames:
        with request.getfixturevalue("server").connect() as connection:
            assert connection.call("GET /v2/health/ready").status == 200


class Slow:
    """Make the digits model load slowly by a label file that is a named pipe.

    The request that loads the model runs from :meth:`begun` to :meth:`finish`.
    """

    target = "POST /predictions/digits"
    body = f"[{','.join(['0'] * 64)}]".encode()

    def __init__(self, models: Path, pool: ThreadPoolExecutor) -> None:
        self._path = waiting_labels.make_pipe(models / "digits" / "labels.txt")
        self._opening: Future[TextIO] = pool.submit(self._path.open, "w")

    def begun(self) -> None:
        """Wait until the server works on the request."""
        self._opening.result(TIMEOUT_S)

    def finish(self) -> None:
        """Let the server finish its work."""
        with self._opening.result(TIMEOUT_S) as pipe:
            pipe.write(LABELS)

    def release(self) -> None:
        """Close both ends, so that a failed test blocks no thread."""
        reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        self._opening.result(TIMEOUT_S).close()
        os.close(reader)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Create a thread pool."""
    with ThreadPoolExecutor(16) as executor:
        yield executor


@pytest.fixture
def slow(
    models_copy: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Slow]:
    """Return a slow request to a server on ``models_copy``."""
    waiting_labels.install(monkeypatch)
    request = Slow(models_copy, pool)
    yield request
    request.release()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Poll until a condition is true."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = monotonic() + TIMEOUT_S
        pause = threading.Event()
        while not condition():
            assert monotonic() < deadline
            pause.wait(0.005)

    return wait


class Local:
    """A socket server in this process.

    Args:
        timeouts: timeouts that the test waits for, such as ``{"frame": 0.3}``.
    """

    def __init__(
        self,
        timeouts: Mapping[str, float] | None = None,
        event_loop: EventLoop | None = None,
        **settings: Any,
    ) -> None:
        options = {
            "models_dir": MODELS,
            "state_dir": STATE,
            "socket_port": 0,
            "quarantine": False,
        } | settings
        self.service = Service(Config(**options))
        self.server = SocketServer(
            self.service, TOKEN, Timeouts(**RESTLESS | (timeouts or {})), event_loop
        )
        self.server.start()

    def connect(self, **options: Any) -> Framed:
        """Return an authenticated connection."""
        return Framed(self.server.port, TOKEN, **options)

    def close(self) -> None:
        """Stop it."""
        self.server.stop()
        self.service.close()


@pytest.fixture
def local() -> Iterator[Callable[..., Local]]:
    """Return a function that starts servers here: ``local({"frame": 0.3},
    socket_idle=1)``.
    """
    started: list[Local] = []

    def start(*arguments: Any, **settings: Any) -> Local:
        started.append(Local(*arguments, **settings))
        return started[-1]

    yield start
    for one in started:
        one.close()
