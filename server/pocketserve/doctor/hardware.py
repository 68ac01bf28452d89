"""Cores, memory, disk space and the clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.settings import Settings
from pocketserve.engine.device.cores import count_fast, readable_memory, top_speed_khz
from pocketserve.messages import plural

if TYPE_CHECKING:
    from pocketserve.config import Config

CPUS = "sys/devices/system/cpu"
LITTLE_MEMORY = 300 << 20
LITTLE_DISK, NO_DISK = 300 << 20, 20 << 20
OLDEST_TIME = 1_735_689_600.0  # 2025-01-01: a clock that shows less was never set


def check_cores(device: Device) -> Iterator[Finding]:
    """Compare all cores and their top speeds with those that this process may use now."""
    names = (path.name[3:] for path in (device.root / CPUS).glob("cpu[0-9]*"))
    cores = sorted(int(name) for name in names if name.isdigit()) or list(device.cores)
    speeds = {core: top_speed_khz(core, device.root / CPUS) for core in cores}
    groups = Counter(speed for speed in speeds.values() if speed is not None)
    text = (
        ", ".join(
            f"{count} of {speed / 1e6:.1f} GHz"
            for speed, count in sorted(groups.items(), reverse=True)
        )
        or "speeds unknown"
    )
    fast = count_fast(device.cores, speeds.get)
    sentence = f"{plural(len(cores), 'core')} ({text}); this process may use {len(device.cores)} now"
    usable = [speed for core in device.cores if (speed := speeds.get(core)) is not None]
    if groups and usable and max(usable) < max(groups):
        fix = "bring Termux to the front, and set its battery use to Unrestricted in Android's settings"
        yield warning(
            "cores",
            f"{sentence}, none of them a fastest one, for Termux is in the background",
            fix,
        )
    else:
        yield ok(
            "cores",
            f"{sentence}, and one inference uses the {'fast one' if fast == 1 else f'{fast} fast ones'}",
        )


def check_memory(device: Device, settings: Settings) -> Iterator[Finding]:
    """Check what is available, and what models may take of it."""
    available = readable_memory(device.root / "proc/meminfo")
    if available is None:
        fix = "export POCKETSERVE_MEMORY_BUDGET=512M"
        yield warning(
            "memory",
            "the system does not tell how much memory is available: 1.0 GB is assumed",
            fix,
        )
        return
    budget = settings.config.memory_budget if settings.config is not None else 0
    sentence = f"{_size(available)} of memory are available"
    if budget > available:
        fix = f"export POCKETSERVE_MEMORY_BUDGET={available // 2 >> 20}Mi"
        yield warning(
            "memory", f"{sentence}, but the memory budget is {_size(budget)}", fix
        )
    elif available < LITTLE_MEMORY:
        yield warning(
            "memory",
            f"only {sentence}: Android will end the server",
            "close other apps",
        )
    else:
        yield ok(
            "memory",
            f"{sentence}; loaded models may hold {_size(budget or available // 2)} together",
        )


def check_disk(device: Device, config: Config) -> Iterator[Finding]:
    """Check the space where the state is kept."""
    path = config.state_dir.absolute()
    folder = next(folder for folder in (path, *path.parents) if folder.exists())
    free = device.free_disk(folder)
    if free >= LITTLE_DISK:
        yield ok("disk", f"{_size(free)} are free in {folder}")
    else:
        fault = problem if free < NO_DISK else warning
        yield fault(
            "disk",
            f"only {_size(free)} are free in {folder}",
            "delete something: du -sh ~/* | sort -h",
        )


def check_clock(device: Device) -> Iterator[Finding]:
    """Check the clock: if it was never set, every download fails, and every date is wrong."""
    text = time.strftime("%Y-%m-%d %H:%M", time.gmtime(device.now))
    if device.now < OLDEST_TIME:
        fix = device.command(
            "set date and time to automatic in Android's settings",
            "timedatectl set-ntp true",
        )
        yield problem("clock", f"the clock is wrong: it shows {text}", fix)
    else:
        yield ok("clock", f"the clock shows {text} UTC")


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
