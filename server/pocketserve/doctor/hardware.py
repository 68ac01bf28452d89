"""Cores, memory, disk space and the clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.settings import Settings
from pocketserve.engine.device.cores import count_fast, readable_memory, top_speed_khz
from pocketserve.messages import plural

CPUS = "sys/devices/system/cpu"
LITTLE_MEMORY = 300 << 20
LITTLE_DISK, NO_DISK = 300 << 20, 20 << 20
OLDEST_TIME = 1_735_689_600.0
"""2025-01-01: a clock that shows less was never set."""


def check_cores(device: Device) -> Iterator[Finding]:
    """All cores with their top speeds, and those that this process may use now."""
    everyone = sorted(
        int(path.name[3:]) for path in (device.root / CPUS).glob("cpu[0-9]*") if path.name[3:].isdigit()
    ) or list(device.cores)
    speeds = {core: top_speed_khz(core, device.root / CPUS) for core in everyone}
    groups = Counter(speed for speed in speeds.values() if speed is not None)
    known = ", ".join(f"{count} of {speed / 1e6:.1f} GHz" for speed, count in sorted(groups.items(), reverse=True))
    fast = count_fast(device.cores, lambda core: speeds.get(core))
    sentence = (
        f"{plural(len(everyone), 'core')} ({known or 'speeds unknown'}); this process may use {len(device.cores)} now"
    )
    usable = [speed for core in device.cores if (speed := speeds.get(core)) is not None]
    if groups and usable and max(usable) < max(groups):
        fix = "bring Termux to the front, and set its battery use to Unrestricted in Android's settings"
        yield warning("cores", f"{sentence}, none of them a fastest one, for Termux is in the background", fix)
    else:
        yield ok(
            "cores", f"{sentence}, and one inference uses {'the fast one' if fast == 1 else f'the {fast} fast ones'}"
        )


def check_memory(device: Device, settings: Settings) -> Iterator[Finding]:
    """Yield what is available, and what models may take of it."""
    available = readable_memory(device.root / "proc/meminfo")
    if available is None:
        fix = "export POCKETSERVE_MEMORY_BUDGET=512M"
        yield warning("memory", "the system does not tell how much memory is available: 1.0 GB is assumed", fix)
        return
    asked = settings.config.memory_budget if settings.config is not None else 0
    sentence = f"{_size(available)} of memory are available"
    if asked > available:
        fix = f"export POCKETSERVE_MEMORY_BUDGET={available // 2 >> 20}Mi"
        yield warning("memory", f"{sentence}, but the memory budget is {_size(asked)}", fix)
    elif available < LITTLE_MEMORY:
        yield warning("memory", f"only {sentence}: Android will end the server", "close other apps")
    else:
        yield ok("memory", f"{sentence}; loaded models may hold {_size(asked or available // 2)} together")


def check_disk(device: Device, settings: Settings) -> Iterator[Finding]:
    """Space where the state is kept."""
    if settings.config is None:
        return
    folder = _existing(settings.config.state_dir)
    free = device.free_disk(folder)
    if free < NO_DISK:
        yield problem("disk", f"only {_size(free)} are free in {folder}", "delete something: du -sh ~/* | sort -h")
    elif free < LITTLE_DISK:
        yield warning("disk", f"only {_size(free)} are free in {folder}", "delete something: du -sh ~/* | sort -h")
    else:
        yield ok("disk", f"{_size(free)} are free in {folder}")


def check_clock(device: Device) -> Iterator[Finding]:
    """A clock that was never set makes every download fail, and every date wrong."""
    shown = time.strftime("%Y-%m-%d %H:%M", time.gmtime(device.now))
    if device.now < OLDEST_TIME:
        fix = device.command("set date and time to automatic in Android's settings", "timedatectl set-ntp true")
        yield problem("clock", f"the clock is wrong: it shows {shown}", fix)
    else:
        yield ok("clock", f"the clock shows {shown} UTC")


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
