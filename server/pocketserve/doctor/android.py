"""What Android does to a program in the background: sleep, heat, and the end of child processes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, warning
from pocketserve.doctor.surroundings import Settings
from pocketserve.run_marker import running

BATTERY_TIMEOUT_S = 4.0  # it hangs for good where the Termux:API app is missing
QUICK_TIMEOUT_S = 3.0
HOT_C, LOW_PERCENT = 42.0, 15.0
SLEPT_S = 60.0
MANY_PROCESSES = 16
PHANTOM_API, PHANTOM_SETTING_API = 31, 32
PHANTOM_FIX = "adb shell settings put global settings_enable_monitor_phantom_procs false"
PHANTOM_FIX_12 = "adb shell device_config put activity_manager max_phantom_processes 2147483647"


def on_android(device: Device) -> bool:
    """Whether Android decides, be it in Termux or in a Linux distribution inside of it."""
    return device.termux or device.proot


def check_wake_lock(device: Device, settings: Settings) -> Iterator[Finding]:
    """No program can ask for the wake lock; that the device slept while a server ran shows that it was not held."""
    if not on_android(device):
        return
    runs = running(settings.config.state_dir) if settings.config is not None else []
    slept = max((_slept(device, run.suspended) for run in runs), default=0.0)
    if slept > SLEPT_S:
        yield warning("wake lock", f"the phone slept {slept / 60:.0f} min while the server ran", "termux-wake-lock")
    elif device.termux and device.which("termux-wake-lock") is None:
        yield warning("wake lock", "termux-wake-lock is missing: the phone may sleep", "pkg install termux-tools")
    else:
        fix = "termux-wake-lock"
        yield ok(
            "wake lock", "Termux's notification says 'wake lock held' when it is; without it the phone sleeps", fix
        )


def _slept(device: Device, before: float | None) -> float:
    return 0.0 if before is None or device.suspended is None else device.suspended - before


def check_battery(device: Device) -> Iterator[Finding]:
    """Heat slows every core; Android stops background work when the battery is low."""
    if not device.termux:
        return
    if device.which("termux-battery-status") is None:
        fix = "pkg install termux-api, and the Termux:API app from where Termux came from"
        yield ok("battery", "heat and charge are not known: Termux:API is not installed", fix)
        return
    outcome = device.run(["termux-battery-status"], BATTERY_TIMEOUT_S)
    status = _status(outcome.output)
    if status is None:
        what = "does not answer" if outcome.timed_out else "says nothing of use"
        fix = "install the Termux:API app from where Termux came from, and open it once"
        yield warning("battery", f"termux-battery-status {what}", fix)
        return
    heat, charge = _number(status.get("temperature")), _number(status.get("percentage"))
    if heat >= HOT_C:
        fix = "let the phone cool down, out of its case and off the charger"
        yield warning("battery", f"the battery is hot ({heat:.0f} °C): the cores are slowed down", fix)
    if charge < LOW_PERCENT and status.get("plugged") == "UNPLUGGED":
        yield warning("battery", f"the battery is low ({charge:.0f} %): Android stops background work", "plug it in")
    elif not heat >= HOT_C:
        yield ok("battery", f"the battery has {charge:.0f} % and {heat:.0f} °C")


def _status(text: str) -> dict[str, object] | None:
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return status if isinstance(status, dict) and "percentage" in status else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def check_phantom_processes(device: Device) -> Iterator[Finding]:
    """Android 12 and later end child processes of apps when there are more than 32 of all apps together."""
    if not device.termux:
        return
    told = device.run(["getprop", "ro.build.version.sdk"], QUICK_TIMEOUT_S).output.strip()
    api = int(told) if told.isdecimal() and len(told) < 4 else 0
    if api and api < PHANTOM_API:
        yield ok("processes", "this Android does not limit child processes")
        return
    monitor = device.run(["settings", "get", "global", "settings_enable_monitor_phantom_procs"], QUICK_TIMEOUT_S)
    if monitor.output.strip() == "false":
        yield ok("processes", "Android's limit on child processes is switched off")
        return
    count = sum(path.name.isdigit() for path in (device.root / "proc").iterdir())  # others' are hidden
    fix = PHANTOM_FIX if api != PHANTOM_API else PHANTOM_FIX_12
    sentence = f"Termux has {count} processes; Android ends some when all apps together have more than 32"
    yield warning("processes", sentence, fix) if count >= MANY_PROCESSES else ok("processes", sentence, fix)
