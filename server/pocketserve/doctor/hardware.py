"""Check cores, memory, disk space and the clock."""

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
OLDEST_TIME = 1_735_689_600.0  # 2025-01-01: an earlier time was never set


def check_cores(device: Device) -> Iterator[Finding]:
    """Compare all cores with those that are usable."""
    cores = _all_cores(device)
    speeds = {}
    for core in cores:
        speeds[core] = top_speed_khz(core, device.root / CPUS)
    groups = Counter(speed for speed in speeds.values() if speed is not None)
    sentence = (
        f"{plural(len(cores), 'core')} ({_describe_speeds(groups)}); "
        f"this process may use {len(device.cores)} now"
    )
    usable = [speeds.get(core) or 0 for core in device.cores]
    fastest_usable = max(usable, default=0)
    fastest = max(groups, default=0)
    if 0 < fastest_usable < fastest:
        yield warning(
            "cores",
            f"{sentence}, none of the fastest, because Termux is in the background",
            "bring Termux to the front, and set its battery use to Unrestricted in "
            "Android's settings",
        )
        return
    fast = count_fast(device.cores, speeds.get)
    noun = "fast one"
    if fast != 1:
        noun = f"{fast} fast ones"
    yield ok("cores", f"{sentence}, and one inference uses the {noun}")


def _all_cores(device: Device) -> list[int]:
    cores = []
    for path in (device.root / CPUS).glob("cpu[0-9]*"):
        number = path.name[3:]
        if number.isdigit():
            cores.append(int(number))
    return sorted(cores) or list(device.cores)


def _describe_speeds(groups: Counter[int]) -> str:
    if not groups:
        return "speeds unknown"
    parts = []
    for speed, count in sorted(groups.items(), reverse=True):
        parts.append(f"{count} of {speed / 1e6:.1f} GHz")
    return ", ".join(parts)


def check_memory(device: Device, settings: Settings) -> Iterator[Finding]:
    """Check the available memory, and the models' share of it."""
    budget = 0
    if settings.config is not None:
        budget = settings.config.memory_budget
    available = readable_memory(device.root / "proc/meminfo")
    if available is not None:
        yield _judge_memory(available, budget)
        return
    yield warning(
        "memory",
        "the system does not report the available memory: 1.0 GB is assumed",
        "export POCKETSERVE_MEMORY_BUDGET=512M",
    )


def _judge_memory(available: int, budget: int) -> Finding:
    sentence = f"{_size(available)} of memory are available"
    if budget > available:
        fix = f"export POCKETSERVE_MEMORY_BUDGET={available // 2 >> 20}Mi"
        text = f"{sentence}, but the memory budget is {_size(budget)}"
        return warning("memory", text, fix)
    if available < LITTLE_MEMORY:
        text = f"only {sentence}: Android will end the server"
        return warning("memory", text, "close other apps")
    allowed = _size(budget or available // 2)
    return ok("memory", f"{sentence}; all loaded models together may use {allowed}")


def check_disk(device: Device, config: Config) -> Iterator[Finding]:
    """Check the free space in the state folder."""
    path = config.state_dir.absolute()
    folder = next(folder for folder in (path, *path.parents) if folder.exists())
    free = device.free_disk(folder)
    if free >= LITTLE_DISK:
        yield ok("disk", f"{_size(free)} are free in {folder}")
        return
    fault = warning
    if free < NO_DISK:
        fault = problem
    yield fault(
        "disk",
        f"only {_size(free)} are free in {folder}",
        "delete something: du -sh ~/* | sort -h",
    )


def check_clock(device: Device) -> Iterator[Finding]:
    """Check whether the clock was ever set."""
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
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB"
