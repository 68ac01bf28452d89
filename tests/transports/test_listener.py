"""Fail at once if a port is taken, or wait for it if requested."""

from __future__ import annotations

import logging
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import MODELS, StartServer
from pocketserve.transports.listener import PortTakenError, affordable, listen

LIMIT_S = 60.0


class Told(logging.Handler):
    """Frees the hijacked port when a waiting message is logged."""

    def __init__(self, squatter: socket.socket) -> None:
        super().__init__()
        self.squatter = squatter
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.squatter.close()


@pytest.mark.parametrize("wait", [0.0, 0.01])
def test_a_port_that_stays_taken_is_an_error(wait: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        with pytest.raises(
            PortTakenError,
            match=f"cannot listen on 127.0.0.1:{port}: .*; stop what uses it or .* --p",
        ):
            listen("127.0.0.1", port, "--port", wait)


def test_other_errors_are_not_waited_for() -> None:
    with pytest.raises(PortTakenError, match=r"cannot listen on 192\.0\.2\.1"):
        listen("192.0.2.1", 0, "--port", 10 * LIMIT_S)


def test_a_port_that_becomes_free_is_taken() -> None:
    squatter = socket.create_server(("127.0.0.1", 0))
    port = squatter.getsockname()[1]
    told = Told(squatter)
    logger = logging.getLogger("pocketserve.transports.listener")
    logger.addHandler(told)
    try:
        with listen("127.0.0.1", port, "--port", LIMIT_S) as listener:
            assert listener.getsockname()[1] == port
    finally:
        logger.removeHandler(told)
    assert told.texts == [
        f"another program has 127.0.0.1:{port}; waiting for it for 60 s"
    ]


@pytest.mark.live
@pytest.mark.parametrize("which", ["--http-port", "--socket-port"])
def test_a_server_waits_for_its_ports(
    new_server: StartServer, tmp_path: Path, which: str
) -> None:
    """It answers as soon as the other program has left."""
    log = tmp_path / "server-0" / "server.log"
    with (
        ThreadPoolExecutor(1) as pool,
        socket.create_server(("127.0.0.1", 0)) as squatter,
    ):
        port = squatter.getsockname()[1]
        starting = pool.submit(
            new_server, MODELS, which, str(port), "--port-wait", "60"
        )
        deadline = time.monotonic() + LIMIT_S
        pace = threading.Event()
        while "waiting for it" not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() < deadline
            pace.wait(0.02)
        squatter.close()
        server = starting.result(LIMIT_S)
    assert port in (server.port, server.socket_port)
    assert server.call("GET", "/v2/health/ready").status_code == 200


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        (1024, 512),
        (128, 38),
        (64, 1),
        (10, 1),
    ],
)
def test_connections_leave_room_for_other_files(
    files: int, allowed: int, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        assert affordable(512, 0.6, "max_connections") == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    warnings = [record.getMessage() for record in caplog.records]
    if allowed == 512:
        assert warnings == []
    else:
        [warning] = warnings
        assert warning.startswith(f"max_connections is {allowed}, not 512")
        assert f"open only {files} files" in warning
        assert "`ulimit -n 1024`" in warning


def test_no_other_program_can_take_our_port() -> None:
    """A port that is only bound can be bound and listened to by others, with
    SO_REUSEADDR.
    """
    with listen("127.0.0.1", 0, "--http-port") as ours, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(ours.getsockname())
