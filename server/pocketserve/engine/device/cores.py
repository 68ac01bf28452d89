"""The cores and memory that this process may use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve import system

if TYPE_CHECKING:
    from pocketserve.engine.device.power import PowerWatch

FAST_SHARE = 0.7
"""Share of the fastest core's top speed from which a core counts as fast.

Big and middle cores do, little ones do not."""


def usable_cores() -> list[int]:
    """Return the usable cores.

    Android shrinks the set for background apps.

    This is the main thread's set: the calling thread, which 0 stands for, may be bound.
    """
    getter: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    if getter is None:
        return list(range(os.cpu_count() or 1))
    return sorted(getter(os.getpid()))


def top_speed_khz(core: int, root: Path | None = None) -> int | None:
    """Return a core's highest clock in kHz, None if unknown.

    ``scaling_max_freq`` is not used: some devices forbid reading it.
    """
    folder = root or system.root() / "sys/devices/system/cpu"
    try:
        return int((folder / f"cpu{core}" / "cpufreq" / "cpuinfo_max_freq").read_text())
    except (OSError, ValueError):
        return None


def count_fast(
    cores: Iterable[int], speed: Callable[[int], int | None] = top_speed_khz
) -> int:
    """Return the number of fast cores, at least 1.

    All of them if no speed is known.
    """
    listed = list(cores)
    speeds: list[int] = []
    for core in listed:
        kilohertz = speed(core)
        if kilohertz is None:
            return max(1, len(listed))
        speeds.append(kilohertz)
    if not speeds:
        return 1
    slowest = FAST_SHARE * max(speeds)
    return sum(kilohertz >= slowest for kilohertz in speeds)


class CoreWatch:
    """Tracks the usable cores and low power, which halves them.

    Android takes cores away from an app in the background and gives them back later.
    """

    def __init__(
        self, usable_cores: Callable[[], list[int]], power: PowerWatch
    ) -> None:
        self.usable_cores = usable_cores
        self.power = power
        self._fitted = usable_cores(), power.low

    def follow(self) -> bool:
        """Update the cores; return whether anything has changed."""
        before, self._fitted = self._fitted, (self.usable_cores(), self.power.low)
        return self._fitted != before

    def has_changed(self, now: float) -> bool:
        """Return whether :meth:`follow` has something to do."""
        return (
            self.power.due(now) or (self.usable_cores(), self.power.low) != self._fitted
        )

    @property
    def runs_at_a_time(self) -> int:
        """Runs at a time, over all models."""
        usable, low = self._fitted
        return (max(1, len(usable) // 2) if low else len(usable)) + 1

    def threads(self, setting: int) -> int:
        """Return the threads of one run; 0 takes the fast cores."""
        usable, low = self._fitted
        threads = setting or count_fast(usable)
        return max(1, threads // 2) if low else threads


def available_memory() -> int:
    """Return the bytes of available memory; 1 GiB if unknown."""
    return readable_memory() or 2**30


def readable_memory(meminfo: Path | None = None) -> int | None:
    """Return the bytes of available memory, None if unknown.

    Android lets apps read this file of ``/proc``, unlike others.
    """
    try:
        content = (meminfo or system.root() / "proc/meminfo").read_text()
    except (OSError, ValueError):
        return None
    match = re.search(r"^MemAvailable: *(\d+)", content, re.MULTILINE)
    return int(match[1]) * 1024 if match else None
