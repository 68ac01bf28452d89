"""A command's private server lives only as long as the command."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest

from conftest import MODELS
from pocketserve.local.own_server import own_server
from pocketserve_client import Client

LIMIT_S = 120.0
KILLED = (
    "import os, sys; from pathlib import Path; from pocketserve.local.own_server import own_server\n"
    "with own_server(Path(sys.argv[1])) as server:\n"
    "    print(server.http, flush=True); os.kill(os.getpid(), 9)\n"
)

pytestmark = pytest.mark.live


def listens(url: str) -> bool:
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), LIMIT_S).close()
    except OSError:
        return False
    return True


def test_a_private_server_answers_and_ends() -> None:
    with (
        own_server(MODELS) as server,
        Client(server.http, token_file=server.token_file) as client,
    ):
        assert client.predict("petals", [5.1, 3.5, 1.4])["predictions"]
    assert not listens(server.http)


def test_a_private_server_ends_with_a_killed_command() -> None:
    command = [sys.executable, "-c", KILLED, str(MODELS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + LIMIT_S
    never = threading.Event()
    while listens(done.stdout.strip()):
        assert time.monotonic() < deadline, "nobody ended it"
        never.wait(0.02)
