"""Another app that takes the server's ports while it is dead, and claims to be the server."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from pocketserve_wire.frames import FrameType, json_frame
from pocketserve_wire.handshake import AUTH_HMAC, NONCE_BYTES, VERSION
from pocketserve_wire.strict_json import dumps

LOOPBACK = "127.0.0.1"
MAX_RECORDED_BYTES = 1 << 16
MAX_CONNECTIONS = 256
JOIN_S = 5.0
LISTENING = "0A"
HTTP_METHODS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ")

CHALLENGE = json_frame(FrameType.CHALLENGE, dumps({"v": VERSION, "nonce": "5a" * NONCE_BYTES, "auth": AUTH_HMAC}))
_LIMITS = {"max_frame": 1 << 20, "max_inflight": 8, "max_bytes_inflight": 1 << 20, "idle_ms": 60_000}
READY = json_frame(FrameType.READY, dumps({"proof": "0" * 64, **_LIMITS, "server": "pocketserve"}))
"""The best that can be said without the token."""


class PortHijacker:
    """Listens, records what each connection sends, and goes through the socket protocol's handshake with a false proof.

    To HTTP it says nothing and hangs up; it has received the whole request by then, the token with it.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.received: list[bytearray] = []
        self._selector = selectors.DefaultSelector()
        self._wake, waker = socket.socketpair()
        self._selector.register(waker, selectors.EVENT_READ, None)
        try:
            for port in ports:
                listener = socket.socket()
                self._selector.register(listener, selectors.EVENT_READ, self._accept)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((LOOPBACK, port))
                listener.listen()
                listener.setblocking(False)
        except OSError:
            self._close_all()
            raise
        self._thread = threading.Thread(target=self._run, name="simulate-port-hijacker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give the ports back."""
        self._wake.close()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._close_all()
                    return
                key.data(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            if len(self.received) >= MAX_CONNECTIONS:
                connection.close()
                return
            connection.setblocking(False)
            self.received.append(bytearray())
            self._selector.register(
                connection, selectors.EVENT_READ, functools.partial(self._answer, self.received[-1])
            )

    def _answer(self, received: bytearray, connection: socket.socket) -> None:
        reply = READY if received else CHALLENGE
        with contextlib.suppress(OSError):
            data = connection.recv(MAX_RECORDED_BYTES)
            received += data[: MAX_RECORDED_BYTES - len(received)]
            if data and not received.startswith(HTTP_METHODS):
                connection.send(reply)
                return
        self._selector.unregister(connection)
        connection.close()

    def _close_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._wake.close()


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens, in order; empty where the system does not tell."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(path))
    ports = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)
