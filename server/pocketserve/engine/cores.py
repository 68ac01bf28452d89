"""How many cores are worth using: the fast ones among those this process may run on now."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from pocketserve import system

FAST_SHARE = 0.7
"""A core counts as fast from this share of the fastest core's top speed: big and middle cores, not little ones."""


def usable_cores() -> list[int]:
    """The cores this process may run on now; Android shrinks the set for background apps.

    The main thread's set is asked, whichever thread asks: 0 would mean the calling thread, and a thread may be bound.
    """
    getter: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    if getter is None:
        return list(range(os.cpu_count() or 1))
    return sorted(getter(os.getpid()))


def top_speed_khz(core: int, root: Path | None = None) -> int | None:
    """A core's highest clock in kHz; None where the system does not tell.

    ``scaling_max_freq`` is not used: some devices forbid reading it.

    Args:
        root: where the folders of the cores are; the system's by default.
    """
    folder = root or system.root() / "sys/devices/system/cpu"
    try:
        return int((folder / f"cpu{core}" / "cpufreq" / "cpuinfo_max_freq").read_text())
    except (OSError, ValueError):
        return None


def count_fast(cores: Iterable[int], speed: Callable[[int], int | None] = top_speed_khz) -> int:
    """How many of the cores are fast ones; all of them when no speed is known. At least 1."""
    listed = list(cores)
    speeds = [known for core in listed if (known := speed(core)) is not None]
    if len(speeds) < len(listed) or not speeds:
        return max(1, len(listed))
    return sum(known >= FAST_SHARE * max(speeds) for known in speeds)


def available_memory() -> int:
    """Bytes of memory that can be had without swapping; a cautious 1 GiB where the system does not tell."""
    return readable_memory() or 2**30


def readable_memory(meminfo: Path | None = None) -> int | None:
    """Bytes of memory that can be had without swapping; None where the system does not tell.

    Android lets apps read this file of ``/proc``, unlike ``/proc/stat``.

    Args:
        meminfo: the file; the system's by default.
    """
    file = meminfo or system.root() / "proc/meminfo"
    try:
        for line in file.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
