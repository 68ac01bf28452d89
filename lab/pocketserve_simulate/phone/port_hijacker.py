"""Another app that takes the server's ports while it is dead, and claims to be the server."""

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
# The best that can be said without the token:
READY = json_frame(
    FrameType.READY, dumps({"proof": "0" * 64, **_LIMITS, "server": "pocketserve"})
)


class PortHijacker:
    """Listens, records what each connection sends, and goes through the socket protocol's handshake with a false proof.

    To HTTP it says nothing and hangs up; it has received the whole request by then, the token with it.
    """

    def __init__(self, ports: Sequence[int], host: str = LOOPBACK) -> None:
        self.received: list[bytearray] = []
        self._closing: Future[None] = Future()
        with contextlib.ExitStack() as stack:
            listeners = [
                stack.enter_context(socket.create_server((host, port)))
                for port in ports
            ]
            stack.pop_all()
        work = self._serve(listeners)
        self._thread = threading.Thread(
            target=asyncio.run, args=[work], name="simulate-port-hijacker", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Give the ports back."""
        self._closing.set_result(None)
        self._thread.join(JOIN_S)

    async def _serve(self, listeners: Sequence[socket.socket]) -> None:
        servers = [
            await asyncio.start_server(self._answer, sock=listener)
            for listener in listeners
        ]
        await asyncio.wrap_future(self._closing)
        for server in servers:
            server.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        received = bytearray()
        with contextlib.suppress(OSError), contextlib.closing(writer):
            if len(self.received) < MAX_CONNECTIONS:
                self.received.append(received)
                while data := await reader.read(MAX_RECORDED_BYTES):
                    reply = READY if received else CHALLENGE
                    received += data[: MAX_RECORDED_BYTES - len(received)]
                    if received.startswith(HTTP_METHODS):
                        break
                    writer.write(reply)
                    await writer.drain()


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens, in order; empty where the system does not tell."""
    sockets = listeners(Device(root=Path("/")).read)
    ports = set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            ports.add(sockets.get(os.readlink(path)))
    return sorted(port for port in ports if port is not None)
