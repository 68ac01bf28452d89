"""Latencies of all sides, measured in turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: samples of each side.
        warm_up: calls before the first sample.
        seconds: no round begins after this time, except for the ``least`` first ones.
    """

    rounds: int = 1500
    warm_up: int = 150
    seconds: float = 20.0
    least: int = 5

    def of(self, share: float) -> Effort:
        """Return a part of the effort for slow benchmarks."""
        return Effort(
            max(self.least, int(self.rounds * share)),
            max(2, int(self.warm_up * share)),
            self.seconds,
            self.least,
        )


FULL = Effort()
QUICK = Effort(rounds=5, warm_up=2, seconds=5.0, least=2)


def interleave(
    calls: Mapping[str, Callable[[], object]], effort: Effort
) -> dict[str, list[float]]:
    """Call all sides in turn; microseconds of each call by side."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    turns = list(calls.items())
    deadline = time.monotonic() + effort.seconds
    for _ in range(effort.warm_up):
        for _, call in turns:
            call()
        if time.monotonic() > deadline - effort.seconds / 2:
            break
    done = 0
    while done < effort.rounds and (done < effort.least or time.monotonic() < deadline):
        for name, call in turns:
            began = time.perf_counter()
            call()
            samples[name].append((time.perf_counter() - began) * 1e6)
        # So that no side always follows the same other one.
        turns = turns[1:] + turns[:1]
        done += 1
    return samples


def say(what: str) -> None:
    """Show progress on a terminal, between measurements only."""
    if sys.stderr.isatty():
        print(f"\r\033[K    {what} …\r", end="", file=sys.stderr, flush=True)
