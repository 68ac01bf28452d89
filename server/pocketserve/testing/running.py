"""A real server for a test: a process on free ports, with a token and a state folder of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.local.own_server import own_server
from pocketserve_client import Client


class RunningServer(NamedTuple):
    """A running server, with the addresses of both transports."""

    http: str
    socket: str
    token: str
    token_file: Path
    pid: int

    def client(self, **options: Any) -> Client:
        """Return a client of it, over the socket; ``options`` are those of :class:`pocketserve_client.Client`."""
        return Client(options.pop("url", self.socket), self.token, **options)


@contextmanager
def running_server(folder: str | Path, *options: str) -> Iterator[RunningServer]:
    """Serve a models folder as long as the block runs.

    Args:
        options: further options of ``pocketserve serve``, such as ``"--no-quarantine"``.

    Raises:
        pocketserve.local.own_server.OwnServerError: it does not start.
    """
    with (
        tempfile.TemporaryDirectory(prefix="pocketserve-test-") as state,
        own_server(Path(folder), "--state-dir", state, *options) as server,
    ):
        token = server.token_file.read_text(encoding="ascii").strip()
        yield RunningServer(
            server.http, server.socket, token, server.token_file, server.pid
        )
