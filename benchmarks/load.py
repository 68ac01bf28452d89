"""The closed load: many connections from one thread, each asks again once it is answered."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.calls import TIMEOUT_S, Call


@dataclass
class Load:
    """What a load came to.

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
    """Keep one request under way on every connection for so long.

    Args:
        spins: never sleep, as the open load does. A core that sleeps leaves the others more speed, so a rate that was
            reached beside it is not one that can be held beside a busy one.
    """
    load = Load(by_call=[[] for _ in calls])
    places = {id(call): kept for call, kept in zip(calls, load.by_call, strict=True)}
    poller = select.poll()
    under_way: dict[int, tuple[Call, float]] = {}

    def ask(call: Call) -> None:
        now = time.perf_counter()
        call.send()
        poller.register(call.socket, select.POLLIN)
        under_way[call.socket.fileno()] = call, now

    began = answered = time.perf_counter()
    for call in calls:
        ask(call)
    while under_way:
        ready = poller.poll(0 if spins else 1000 * TIMEOUT_S)
        if ready:
            answered = time.perf_counter()
        elif not spins or time.perf_counter() > answered + TIMEOUT_S:
            raise TimeoutError(f"no answer within {TIMEOUT_S:g} s")
        for fd, _ in ready:
            call, left = under_way[fd]
            if not call.receive():
                continue
            now = time.perf_counter()
            load.latencies.append((now - left) * 1e6)
            places[id(call)].append(load.latencies[-1])
            del under_way[fd]
            if now >= began + seconds:
                poller.unregister(fd)
                continue
            if call.reconnects:
                poller.unregister(fd)
            ask(call)
    load.seconds = time.perf_counter() - began
    return load
