"""Android's effects on a program in the background: sleep, heat, and the end of child processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, warning
from pocketserve.doctor.settings import Settings
from pocketserve.engine.device.battery import PROGRAM, read_status
from pocketserve.engine.device.power import BATTERY, HEAT, reasons_for
from pocketserve.state.run_lock import boot_id, killed, running_servers
from pocketserve_wire.files.run_file import Run

if TYPE_CHECKING:
    from pocketserve.config import Config

BATTERY_TIMEOUT_S = 4.0  # it hangs for good where the Termux:API app is missing
QUICK_TIMEOUT_S = 3.0
HOT_C, LOW_PERCENT = 42.0, 15.0
SLEPT_S = 60.0
RECENT_S = 86_400.0
MANY_PROCESSES = 16
PHANTOM_API = 31
PHANTOM_FIX = (
    "adb shell settings put global settings_enable_monitor_phantom_procs false"
)
PHANTOM_FIX_12 = (
    "adb shell device_config put activity_manager max_phantom_processes 2147483647"
)


def on_android(device: Device) -> bool:
    """Return whether Android decides, be it in Termux or in a Linux distribution inside of it."""
    return device.termux or device.proot


def check_wake_lock(device: Device, settings: Settings) -> Iterator[Finding]:
    """Look whether the device slept while a server ran: no program can ask for the wake lock itself."""
    if not on_android(device):
        return
    runs = (
        running_servers(settings.config.state_dir)
        if settings.config is not None
        else []
    )
    now = device.suspended
    slept = max(
        (
            now - run.suspended
            for run in runs
            if now is not None and run.suspended is not None
        ),
        default=0.0,
    )
    if slept > SLEPT_S:
        yield warning(
            "wake lock",
            f"the phone slept {slept / 60:.0f} min while the server ran: requests waited for that long",
            "termux-wake-lock",
        )
    elif device.termux and device.find_program("termux-wake-lock") is None:
        yield warning(
            "wake lock",
            "termux-wake-lock is missing: the phone may sleep",
            "pkg install termux-tools",
        )
    else:
        text = "Termux's notification says 'wake lock held' when it is; without it the phone sleeps"
        yield ok("wake lock", text, "termux-wake-lock")


def check_battery(device: Device, settings: Settings) -> Iterator[Finding]:
    """Check heat, which slows every core, and charge: Android stops background work when it is low."""
    if not device.termux:
        return
    if device.find_program(PROGRAM) is None:
        fix = (
            "pkg install termux-api, and the Termux:API app from where Termux came from"
        )
        yield ok(
            "battery", "heat and charge are not known: Termux:API is not installed", fix
        )
        return
    outcome = device.run([PROGRAM], BATTERY_TIMEOUT_S)
    reading = read_status(outcome.output)
    if reading is None:
        fault = "does not answer" if outcome.timed_out else "says nothing of use"
        fix = "install the Termux:API app from where Termux came from, and open it once"
        yield warning("battery", f"{PROGRAM} {fault}", fix)
        return
    config = settings.config  # the limits are those of the server's low-power mode
    low, hot = (
        (config.low_battery, config.hot_battery)
        if config is not None
        else (LOW_PERCENT, HOT_C)
    )
    effect = "; the server uses fewer threads and refuses background requests"
    effect = effect if config is None or config.low_power == "auto" else ""
    reasons = reasons_for(reading, frozenset(), low, hot)
    if HEAT in reasons:
        fix = "let the phone cool down, out of its case and off the charger"
        yield warning(
            "battery",
            f"the battery is hot ({reading.heat:.0f} °C): the cores are slowed down{effect}",
            fix,
        )
    if BATTERY in reasons:
        sentence = f"the battery is low ({reading.charge:.0f} %): Android stops background work{effect}"
        yield warning("battery", sentence, "plug it in")
    if not reasons:
        charge = "?" if reading.charge is None else f"{reading.charge:.0f}"
        yield ok(
            "battery",
            f"the battery has {charge} %"
            + (f" and {reading.heat:.0f} °C" if reading.heat else ""),
        )


def check_phantom_processes(device: Device) -> Iterator[Finding]:
    """Count processes: Android 12 and later end some when all apps together have more than 32."""
    if not device.termux:
        return
    sdk = device.run(
        ["getprop", "ro.build.version.sdk"], QUICK_TIMEOUT_S
    ).output.strip()
    api = int(sdk) if sdk.isdecimal() and len(sdk) < 4 else 0
    if api and api < PHANTOM_API:
        yield ok("processes", "this Android does not limit child processes")
        return
    monitor = device.run(
        ["settings", "get", "global", "settings_enable_monitor_phantom_procs"],
        QUICK_TIMEOUT_S,
    )
    if monitor.output.strip() == "false":
        yield ok("processes", "Android's limit on child processes is switched off")
        return
    count = sum(
        path.name.isdigit() for path in (device.root / "proc").iterdir()
    )  # others' are hidden
    fix = PHANTOM_FIX if api != PHANTOM_API else PHANTOM_FIX_12
    sentence = f"Termux has {count} processes; Android ends some when all apps together have more than 32"
    yield (
        warning("processes", sentence, fix)
        if count >= MANY_PROCESSES
        else ok("processes", sentence, fix)
    )


def check_last_run(device: Device, config: Config) -> Iterator[Finding]:
    """Report the last server if it was killed lately: Android kills without a word, but its mark stays."""
    run = killed(config.state_dir)
    if run is None or device.now - run.started > RECENT_S:
        yield ok("last run", "no server was killed lately")
    else:
        yield warning("last run", *tell(device, run))


def tell(device: Device, run: Run) -> tuple[str, str]:
    """Return how a server that had no chance to say goodbye ended, as far as can be known, and what helps."""
    boot = boot_id(device.root / "proc/sys/kernel/random/boot_id")
    started = time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.started))
    server = f"the server that started at {started} UTC (process {run.pid})"
    if boot and run.boot and boot != run.boot:
        return f"{server} ended with a restart of the device", "pocketserve serve"
    if on_android(device):
        fix = "termux-wake-lock && pocketserve serve --memory-budget 300M; and see docs/termux.md, 'Signal 9'"
        return f"{server} was killed, most likely by Android", fix
    return f"{server} was killed", "pocketserve serve --memory-budget 500M"
