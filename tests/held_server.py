"""Run a server in this process, over both transports, whose model a test can hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from conftest import MODELS, STATE
from framed import TIMEOUT_S, Framed
from held_model import HeldModel
from pocketserve.auth.guard import Guard
from pocketserve.config import Config
from pocketserve.service import Service
from pocketserve.transports.http.data_plane import create_server_app
from pocketserve.transports.http.server import HttpServer
from pocketserve.transports.socket.server import SocketServer

TOKEN = "t" * 43


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition without an event."""
    deadline = monotonic() + TIMEOUT_S
    pause = threading.Event()
    while not condition():
        assert monotonic() < deadline
        pause.wait(0.005)


class HeldServer:
    """A server and its model.

    Args:
        folder: for the token's file.
        settings: changed settings.

    Attributes:
        model: digits, loaded; ``model.hold`` keeps it busy until ``model.go``.
        addresses: the socket's port, HTTP's and the token's file, as texts.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        config = Config(
            models_dir=MODELS,
            state_dir=STATE,
            http_port=0,
            socket_port=0,
            quarantine=False,
            **settings,
        )
        self.service = Service(config, TOKEN)
        guard = Guard(TOKEN, config.allowed_hosts)
        app = create_server_app(self.service, guard)
        self.http = HttpServer(app, config, guard, traffic=self.service.traffic)
        self.server = SocketServer(self.service, TOKEN)
        self.server.start()
        self._thread = threading.Thread(target=self.http.run)
        self._thread.start()
        token = folder / "token"
        token.write_text(TOKEN)
        self.addresses = [
            str(self.server.port),
            str(self.http.port),
            str(token),
        ]
        self.model = HeldModel(self, until, "digits")
        picture = (MODELS / "digits/samples/7.png").read_bytes()
        assert self.model.peer.call("POST /predictions/digits", picture).status == 200

    def connect(self, **options: Any) -> Framed:
        """Return a greeted connection of the socket protocol."""
        return Framed(self.server.port, TOKEN, **options)

    @property
    def answered(self) -> int:
        """Return the number of requests that the model has answered."""
        return self.service.engine.statistics("digits", "tflite").runs.count

    def close(self) -> None:
        """Stop the server."""
        self.model.peer.close()
        self.server.stop()
        self.http.stop()
        self._thread.join(TIMEOUT_S)
        self.service.close()
