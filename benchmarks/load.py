"""The load generators: many connections from one thread, closed loop (each asks again once it is answered) and open
loop (requests leave on time, whether or not the server keeps up).
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.calls import Call, frame_length
from pocketserve_wire.frames import HEADER

OK, REFUSED, SUPERSEDED = 200, 429, 409
_ID = struct.Struct("<I")


@dataclass
class Load:
    """What a load came to.

    Attributes:
        latencies: microseconds of each call.
        seconds: how long it lasted.
    """

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds


def closed_loop(calls: Sequence[Call], seconds: float) -> Load:
    """Keep one request under way on every connection for so long."""
    load = Load()
    poller = select.poll()
    under_way: dict[int, tuple[Call, float]] = {}

    def ask(call: Call) -> None:
        now = time.perf_counter()
        call.send()
        poller.register(call.socket, select.POLLIN)
        under_way[call.socket.fileno()] = call, now

    began = time.perf_counter()
    for call in calls:
        ask(call)
    while under_way:
        for fd, _ in poller.poll():
            call, left = under_way[fd]
            if not call.receive():
                continue
            now = time.perf_counter()
            load.latencies.append((now - left) * 1e6)
            del under_way[fd]
            if now >= began + seconds:
                poller.unregister(fd)
                continue
            if call.reconnects:
                poller.unregister(fd)
            ask(call)
    load.seconds = time.perf_counter() - began
    return load


@dataclass
class OpenLoad:
    """What an open loop came to: for each answer its status, when its request left, and when it came.

    Attributes:
        late: seconds by which the generator itself was behind its timetable at worst.
    """

    answers: list[tuple[int, float, float]] = field(default_factory=list)
    offered: int = 0
    late: float = 0.0

    def with_status(self, status: int) -> list[tuple[float, float]]:
        """Times of request and answer of those with a status."""
        return [(left, came) for found, left, came in self.answers if found == status]


def open_loop(calls: Sequence[Call], rate: float, seconds: float, drain: float = 10.0) -> OpenLoad:
    """Send ``rate`` requests per second over framed connections, in turn; answers within ``drain`` s count."""
    load = OpenLoad()
    lanes = [_Lane(call) for call in calls]
    by_fd = {lane.call.socket.fileno(): lane for lane in lanes}
    poller = select.poll()
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    began = time.perf_counter()
    total = int(rate * seconds)
    while load.offered < total or any(lane.sent for lane in lanes):
        now = time.perf_counter()
        if now > began + seconds + drain:
            break
        due = began + load.offered / rate
        while load.offered < total and due <= now:
            load.late = max(load.late, now - due)
            lanes[load.offered % len(lanes)].send(now)
            load.offered += 1
            due = began + load.offered / rate
        left = due - time.perf_counter() if load.offered < total else 0.1
        for fd, _ in poller.poll(max(0.0, 1000 * left) if left > 0.001 else 0):
            load.answers += by_fd[fd].receive()
    return load


class _Lane:
    """One framed connection with many requests under way."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.sent: dict[int, float] = {}
        self._number = 0
        self._bytes = bytearray()

    def send(self, now: float) -> None:
        """Send one more, stamped with its own number."""
        self._number += 1
        _ID.pack_into(self.call.request, 4, self._number)
        self.call.socket.sendall(self.call.request)
        self.sent[self._number] = now

    def receive(self) -> list[tuple[int, float, float]]:
        """Read once; the answers that are complete."""
        data = self.call.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed a connection under load")
        self._bytes += data
        now, found = time.perf_counter(), []
        while True:
            length = frame_length(self._bytes, len(self._bytes))
            if length is None or len(self._bytes) < length:
                return found
            _, _, _, number, status, *_ = HEADER.unpack_from(self._bytes)
            found.append((status, self.sent.pop(number), now))
            del self._bytes[:length]
