"""The closed load: many connections from one thread."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.calls import TIMEOUT_S, Call


@dataclass
class Load:
    """The result of a load.

    Attributes:
        latencies: microseconds of each call.
        by_call: the same for each of the calls.
        seconds: how long it lasted.
    """

    latencies: list[float] = field(default_factory=list)
    by_call: list[list[float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds


def closed_loop(calls: Sequence[Call], seconds: float, *, spins: bool = False) -> Load:
    """Keep one request in progress on every connection for a time.

    Args:
        spins: never sleep, like the open load. A core that sleeps leaves the others
            more speed, so its rate can't be compared with that of a busy core.
    """
    loop = _ClosedLoop(calls, seconds)
    loop.run(0 if spins else 1000 * TIMEOUT_S)
    return loop.load


class _ClosedLoop:
    """Connections, each with one request in progress."""

    def __init__(self, calls: Sequence[Call], seconds: float) -> None:
        self.load = Load(by_call=[[] for _ in calls])
        self._calls = calls
        self._seconds = seconds
        self._latencies = {}
        for call, latencies in zip(calls, self.load.by_call, strict=True):
            self._latencies[id(call)] = latencies
        self._poller = select.poll()
        self._pending: dict[int, tuple[Call, float]] = {}
        self._end = 0.0

    def run(self, poll_ms: float) -> None:
        """Send requests until the time is over, and wait for the last answers."""
        began = answered = time.perf_counter()
        self._end = began + self._seconds
        for call in self._calls:
            self._ask(call)
        while self._pending:
            ready = self._poller.poll(poll_ms)
            now = time.perf_counter()
            if ready:
                answered = now
            elif now > answered + TIMEOUT_S or poll_ms:
                raise TimeoutError(f"no answer within {TIMEOUT_S:g} s")
            for fd, _ in ready:
                self._receive(fd)
        self.load.seconds = time.perf_counter() - began

    def _ask(self, call: Call) -> None:
        now = time.perf_counter()
        call.send()
        self._poller.register(call.socket, select.POLLIN)
        self._pending[call.socket.fileno()] = call, now

    def _receive(self, fd: int) -> None:
        call, sent_at = self._pending[fd]
        if not call.receive():
            return
        now = time.perf_counter()
        latency = (now - sent_at) * 1e6
        self.load.latencies.append(latency)
        self._latencies[id(call)].append(latency)
        del self._pending[fd]
        is_over = now >= self._end
        if is_over or call.reconnects:
            self._poller.unregister(fd)
        if not is_over:
            self._ask(call)
