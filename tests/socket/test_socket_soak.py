"""Thousands of hostile frames cause no crash, hang or leak, and a good client is
served.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from framed import Framed, feed
from hostile_frames import Hostile
from pocketserve_wire.errors import ConnectionFaultError
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import FrameType
from soaking import note, rounds

pytestmark = [pytest.mark.live, pytest.mark.soak]

FRAMES = rounds(40_000, 1_000_000)
IN_A_CONNECTION = 40
SEED = 20260102
MORE_MEMORY = 24 * 1024 * 1024
"""Growth allowed for allocators; detects a leak of 600 bytes a frame, and of 24 in
``make soak``.
"""


def assault(server, hostile: Hostile) -> int:
    """Send frames on one connection.

    Return how many the server had to read.
    """
    greet = hostile.random.random() < 0.9
    try:
        peer = Framed(server.socket_port, server.token, greet=greet)
    except OSError:
        return 0
    with peer:
        frames = hostile.connection(IN_A_CONNECTION) if greet else hostile.greeting()
        with suppress(OSError):
            if hostile.random.random() < 0.5:
                peer.send(b"".join(frames))
            else:
                for frame in frames:
                    peer.send(frame)
            leave(peer, hostile.random.random())
        state = HandshakeState.READY if greet else HandshakeState.HELLO
        return count_read_frames(b"".join(frames), ALLOWED[Role.SERVER, state])


def count_read_frames(data: bytes, allowed: frozenset[FrameType]) -> int:
    """Return how many of these frames a server reads, including the invalid one."""
    decoder = FrameDecoder(allowed, 65 << 20)
    count = 0
    for byte in range(0, len(data), 256):
        try:
            count += len(feed(decoder, data[byte : byte + 256]))
        except ConnectionFaultError:
            return count + 1
    return count


def leave(peer: Framed, manner: float) -> None:
    """Read to the end, close at once, or reset."""
    if manner < 0.6:
        peer.socket.shutdown(socket.SHUT_WR)
        while peer.socket.recv(1 << 16):
            pass
    elif manner < 0.8:
        peer.socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )


def held(server) -> tuple[int, int]:
    """Return the server's descriptors and resident bytes."""
    folder = Path(f"/proc/{server.process.pid}")
    pages = int((folder / "statm").read_text().split()[1])
    return len(os.listdir(folder / "fd")), pages * os.sysconf("SC_PAGE_SIZE")


class GoodClient(threading.Thread):
    """A client that sends requests continuously."""

    def __init__(self, server) -> None:
        super().__init__()
        self._server = server
        self.ends = threading.Event()
        self.answers = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._server.connect() as peer:
                while not self.ends.wait(0.01):
                    assert (
                        peer.call("POST /predictions/petals", b"[1,2,3]").status == 200
                    )
                    peer.ping(self.answers)
                    self.answers += 1
        except BaseException as failure:
            self.failure = failure


def test_hostile_frames_do_no_harm(new_server, models_copy, until):
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not tell what a process holds")
    server = new_server(models_copy, "--load", "petals")
    hostile = Hostile(SEED)
    for _ in range(300):
        assault(server, hostile)
    with server.connect() as peer:
        assert peer.call("GET /v2").status == 200
    descriptors, memory = held(server)
    threads = f"/proc/{server.process.pid}/task"
    good = GoodClient(server)
    good.start()
    sent = 0
    while sent < FRAMES and good.failure is None:
        sent += assault(server, hostile)
    good.ends.set()
    good.join()
    assert good.failure is None
    assert good.answers > 100
    assert server.process.poll() is None
    until(lambda: held(server)[0] <= descriptors)
    assert held(server)[1] <= memory + MORE_MEMORY
    until(lambda: len(os.listdir(threads)) <= 12)
    assert "Traceback" not in server.log.read_text()
    note(
        "hostile frames",
        f"{sent}: alive, {good.answers} answers to a good client meanwhile",
    )
    assert server.stop() == 0
