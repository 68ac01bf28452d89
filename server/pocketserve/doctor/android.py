"""What Android does to a program in the background: sleep, heat, and the end of child processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, warning
from pocketserve.doctor.settings import Settings
from pocketserve.engine.device.battery import PROGRAM, Reading, read_status
from pocketserve.engine.device.power import BATTERY, HEAT, reasons_for
from pocketserve.state.run_lock import running_servers

if TYPE_CHECKING:
    from pocketserve.config import Config

BATTERY_TIMEOUT_S = 4.0  # it hangs for good where the Termux:API app is missing
QUICK_TIMEOUT_S = 3.0
HOT_C, LOW_PERCENT = 42.0, 15.0
SLEPT_S = 60.0
MANY_PROCESSES = 16
PHANTOM_API = 31
PHANTOM_FIX = "adb shell settings put global settings_enable_monitor_phantom_procs false"
PHANTOM_FIX_12 = "adb shell device_config put activity_manager max_phantom_processes 2147483647"


def on_android(device: Device) -> bool:
    """Return whether Android decides, be it in Termux or in a Linux distribution inside of it."""
    return device.termux or device.proot


def check_wake_lock(device: Device, settings: Settings) -> Iterator[Finding]:
    """No program can ask for the wake lock; that the device slept while a server ran shows that it was not held."""
    if not on_android(device):
        return
    runs = running_servers(settings.config.state_dir) if settings.config is not None else []
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


def check_battery(device: Device, settings: Settings) -> Iterator[Finding]:
    """Heat slows every core; Android stops background work when the battery is low. The server follows both."""
    if not device.termux:
        return
    if device.which(PROGRAM) is None:
        fix = "pkg install termux-api, and the Termux:API app from where Termux came from"
        yield ok("battery", "heat and charge are not known: Termux:API is not installed", fix)
        return
    outcome = device.run([PROGRAM], BATTERY_TIMEOUT_S)
    reading = read_status(outcome.output)
    if reading is None:
        what = "does not answer" if outcome.timed_out else "says nothing of use"
        fix = "install the Termux:API app from where Termux came from, and open it once"
        yield warning("battery", f"{PROGRAM} {what}", fix)
        return
    yield from _judge(reading, settings.config)


def _judge(reading: Reading, config: Config | None) -> Iterator[Finding]:
    """The limits are those of the server's low-power mode."""
    low, hot = (config.low_battery, config.hot_battery) if config is not None else (LOW_PERCENT, HOT_C)
    follows = config is None or config.low_power == "auto"
    then = "; the server uses fewer threads and refuses background requests" if follows else ""
    reasons = reasons_for(reading, frozenset(), low, hot)
    if HEAT in reasons:
        fix = "let the phone cool down, out of its case and off the charger"
        yield warning("battery", f"the battery is hot ({reading.heat:.0f} °C): the cores are slowed down{then}", fix)
    if BATTERY in reasons:
        sentence = f"the battery is low ({reading.charge:.0f} %): Android stops background work{then}"
        yield warning("battery", sentence, "plug it in")
    if not reasons:
        charge = "?" if reading.charge is None else f"{reading.charge:.0f}"
        yield ok("battery", f"the battery has {charge} %" + (f" and {reading.heat:.0f} °C" if reading.heat else ""))


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
