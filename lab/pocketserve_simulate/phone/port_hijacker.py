"""An app that takes the server's ports and impersonates it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from pocketserve.doctor.device import Device
from pocketserve.doctor.ports import listeners
from pocketserve_wire.addresses import LOOPBACK
from pocketserve_wire.frames import FrameType, json_frame
from pocketserve_wire.handshake import AUTH_HMAC, NONCE_BYTES, VERSION
from pocketserve_wire.strict_json import dumps

MAX_RECORDED_BYTES = 1 << 16
MAX_CONNECTIONS = 256
JOIN_S = 5.0
HTTP_METHODS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ")

CHALLENGE = json_frame(
    FrameType.CHALLENGE,
    dumps({"v": VERSION, "nonce": "5a" * NONCE_BYTES, "auth": AUTH_HMAC}),
)
_LIMITS = {
    "max_frame": 1 << 20,
    "max_inflight": 8,
    "max_bytes_inflight": 1 << 20,
    "idle_ms": 60_000,
}
# The best reply without the token.
READY = json_frame(
    FrameType.READY, dumps({"proof": "0" * 64, **_LIMITS, "server": "pocketserve"})
)


class PortHijacker:
    """Listens, records all data, and completes the socket handshake with a false proof.

    HTTP connections are closed without an answer: by then the whole request, with its
    token, has been received.
    """

    def __init__(self, ports: Sequence[int], host: str = LOOPBACK) -> None:
        self.received: list[bytearray] = []
        self._closing: Future[None] = Future()
        listeners = []
        with contextlib.ExitStack() as stack:
            for port in ports:
                listener = socket.create_server((host, port))
                listeners.append(stack.enter_context(listener))
            # All ports could be taken: keep the listeners open.
            stack.pop_all()
        self._thread = threading.Thread(
            target=asyncio.run,
            args=[self._serve(listeners)],
            name="simulate-port-hijacker",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Release the ports."""
        self._closing.set_result(None)
        self._thread.join(JOIN_S)

    async def _serve(self, listeners: Sequence[socket.socket]) -> None:
        servers = []
        for listener in listeners:
            servers.append(await asyncio.start_server(self._answer, sock=listener))
        await asyncio.wrap_future(self._closing)
        for server in servers:
            server.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            if len(self.received) < MAX_CONNECTIONS:
                received = bytearray()
                self.received.append(received)
                await self._converse(reader, writer, received)

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        received: bytearray,
    ) -> None:
        """Record a connection's data, and reply to the socket protocol."""
        while True:
            data = await reader.read(MAX_RECORDED_BYTES)
            if not data:
                return
            reply = CHALLENGE
            if received:
                reply = READY
            received += data[: MAX_RECORDED_BYTES - len(received)]
            if received.startswith(HTTP_METHODS):
                return
            writer.write(reply)
            await writer.drain()


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports of a process, sorted.

    Empty if the system does not list them.
    """
    sockets = listeners(Device(root=Path("/")).read)
    ports = set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            port = sockets.get(os.readlink(path))
            if port is not None:
                ports.add(port)
    return sorted(ports)
