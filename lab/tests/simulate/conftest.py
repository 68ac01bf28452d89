"""Provide a simulated phone with a real server and real clients."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS
from pocketserve_client import Client
from pocketserve_simulate.phone.device import DEVICES, PhoneModel
from pocketserve_simulate.phone.phone import Phone
from ports import free_port

LIMIT_S = 120.0
FLOWER = [5.1, 3.5, 1.4]
WIDTH = 0.2266
QUICK = dataclasses.replace(DEVICES["mid"], speed=1.0)
"""A phone at the desktop's speed, for tests of other things."""


def eventually(what: Callable[[], Any], limit: float = LIMIT_S) -> Any:
    """Repeat until the result is true; return it."""
    deadline = time.monotonic() + limit
    never = threading.Event()
    while not (answer := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        never.wait(0.02)  # another process sends no event to wait for
    return answer


def free_ports() -> tuple[int, int]:
    """Return two unused ports that a restarted server can reuse."""
    return free_port(), free_port()


@dataclasses.dataclass
class Served:
    """A phone that runs a server.

    Attributes:
        ports: HTTP, socket protocol.
    """

    phone: Phone
    ports: tuple[int, int]
    folder: Path

    @property
    def log(self) -> str:
        """Return the server's output."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def token_file(self) -> Path:
        return self.phone.image.home / ".local/state/pocketserve/token"

    def await_ready(self) -> dict[str, Any]:
        """Wait until the current process reports that it is ready."""
        return eventually(self._ready)

    def _ready(self) -> dict[str, Any] | None:
        try:
            content = json.loads((self.folder / "ready.json").read_text())
        except OSError:
            return None
        if content["pid"] == self.phone.processes.pid:
            return content
        return None

    def client(self, transport: str, **options: Any) -> Client:
        """Return a client of one transport, ``http`` or ``socket``."""
        port = self.ports[0 if transport == "http" else 1]
        return Client(
            f"{transport}://127.0.0.1:{port}", token_file=self.token_file, **options
        )


def width(client: Client, **options: Any) -> float:
    """Return the width of the petal that every test uses."""
    return client.predict("petals", FLOWER, **options)["predictions"][0]["value"]


@pytest.fixture
def serve_on(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Return a function that starts a server: ``serve_on(model, *options)``."""
    phones: list[Phone] = []

    def start(model: PhoneModel = QUICK, *options: str) -> Served:
        phone = Phone(model, tmp_path / "phone", output=tmp_path / "log")
        phones.append(phone)
        ports = free_ports()
        named = [
            f"--http-port={ports[0]}",
            f"--socket-port={ports[1]}",
            f"--ready-file={tmp_path / 'ready.json'}",
        ]
        phone.processes.start(["serve", str(MODELS), *named, *options])
        served = Served(phone, ports, tmp_path)
        served.await_ready()
        return served

    yield start
    for phone in phones:
        phone.close()
