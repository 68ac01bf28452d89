"""Start a private server process that ends with the program.

It uses free ports and its own token.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.child.process import INHERITED, Child, running
from pocketserve.engine.device.signals import uninterrupted

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
BOUND_COMMAND = "pocketserve.cli.parent_death"
"""Runs the command line in a process that ends with its parent."""


class OwnServerError(Exception):
    """The server did not start; the text is one sentence."""


class OwnServer(NamedTuple):
    """A running server and its URLs, such as ``http://127.0.0.1:40123``."""

    pid: int
    http: str
    socket: str
    token_file: Path


@contextmanager
def own_server(models: Path, *options: str) -> Iterator[OwnServer]:
    """Run ``pocketserve serve`` on a models folder during the block.

    The server also ends if the calling thread ends.
    """
    with ExitStack() as stack:
        with uninterrupted():
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="pocketserve-")
            )
        ready = Path(folder, "ready.json")
        token = Path(folder, "token")
        command = [*_command(models, ready, token), *options]
        child = stack.enter_context(running(command, INHERITED, grace_s=STOP_TIMEOUT_S))
        addresses = _await_ready(child, ready)
        http = _url("http", addresses)
        socket = _url("socket", addresses)
        yield OwnServer(child.pid, http, socket, token)


def _url(scheme: str, addresses: Mapping[str, Any]) -> str:
    address = addresses[scheme]
    return f"{scheme}://{address['host']}:{address['port']}"


def _command(models: Path, ready: Path, token: Path) -> list[str]:
    command = [sys.executable, "-m", BOUND_COMMAND, str(os.getpid())]
    command += ["serve", str(models), "--http-port", "0", "--socket-port", "0"]
    command += ["--ready-file", str(ready), "--token-file", str(token)]
    return [*command, "--log-level", "warning"]


def _await_ready(child: Child, ready: Path) -> Any:
    """Wait for the server; return the content of its ready file."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if ready.exists():
            return json.loads(ready.read_text())
        try:
            child.process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            continue
        raise OwnServerError(
            "the server ended before it was ready; its message is above"
        )
    raise OwnServerError(f"the server was not ready within {START_TIMEOUT_S:g} s")
