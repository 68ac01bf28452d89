"""Check Android's limits on background programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, warning
from pocketserve.doctor.settings import Settings
from pocketserve.engine.device.battery import PROGRAM, Reading, read_status
from pocketserve.engine.device.power import BATTERY, HEAT, reasons_for
from pocketserve.state.run_lock import boot_id, killed, running_servers
from pocketserve_wire.files.run_file import Run

if TYPE_CHECKING:
    from pocketserve.config import Config

BATTERY_TIMEOUT_S = 4.0  # without the Termux:API app the program hangs
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
    """Return whether this is Android, in Termux or proot."""
    return device.termux or device.proot


def check_wake_lock(device: Device, settings: Settings) -> Iterator[Finding]:
    """Check whether the device slept while a server ran.

    No program can detect the wake lock itself.
    """
    if not on_android(device):
        return
    slept = _slept_seconds(device, settings)
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
        text = (
            "Termux's notification says 'wake lock held' when it is; "
            "without it the phone sleeps"
        )
        yield ok("wake lock", text, "termux-wake-lock")


def _slept_seconds(device: Device, settings: Settings) -> float:
    """Return how long the device slept while a server ran."""
    if settings.config is None or device.suspended is None:
        return 0.0
    slept = 0.0
    for run in running_servers(settings.config.state_dir):
        if run.suspended is not None:
            slept = max(slept, device.suspended - run.suspended)
    return slept


def check_battery(device: Device, settings: Settings) -> Iterator[Finding]:
    """Check the temperature, which slows every core, and the charge.

    Android stops background work if the charge is low.
    """
    if not device.termux:
        return
    if device.find_program(PROGRAM) is None:
        fix = (
            "pkg install termux-api, and the Termux:API app from the same source as "
            "Termux"
        )
        yield ok(
            "battery", "heat and charge are not known: Termux:API is not installed", fix
        )
        return
    outcome = device.run([PROGRAM], BATTERY_TIMEOUT_S)
    reading = read_status(outcome.output)
    if reading is None:
        fault = "returned nothing useful"
        if outcome.timed_out:
            fault = "does not answer"
        fix = "install the Termux:API app from the same source as Termux, and open it once"
        yield warning("battery", f"{PROGRAM} {fault}", fix)
        return
    yield from _judge_battery(reading, settings.config)


def _judge_battery(reading: Reading, config: Config | None) -> Iterator[Finding]:
    """Compare a reading with the limits of low-power mode."""
    low = LOW_PERCENT
    hot = HOT_C
    if config is not None:
        low = config.low_battery
        hot = config.hot_battery
    effect = ""
    if config is None or config.low_power == "auto":
        effect = "; the server uses fewer threads and rejects background requests"
    reasons = reasons_for(reading, frozenset(), low, hot)
    if HEAT in reasons:
        yield warning(
            "battery",
            f"the battery is hot ({reading.heat:.0f} °C): "
            f"the cores are slowed down{effect}",
            "let the phone cool down, out of its case and off the charger",
        )
    if BATTERY in reasons:
        yield warning(
            "battery",
            f"the battery is low ({reading.charge:.0f} %): "
            f"Android stops background work{effect}",
            "plug it in",
        )
    if not reasons:
        yield _describe_battery(reading)


def _describe_battery(reading: Reading) -> Finding:
    charge = "?" if reading.charge is None else f"{reading.charge:.0f}"
    heat = ""
    if reading.heat:
        heat = f" and {reading.heat:.0f} °C"
    return ok("battery", f"the battery has {charge} %{heat}")


def check_phantom_processes(device: Device) -> Iterator[Finding]:
    """Count processes, which Android 12 and later limit."""
    if not device.termux:
        return
    sdk = device.run(["getprop", "ro.build.version.sdk"], QUICK_TIMEOUT_S)
    number = sdk.output.strip()
    api = 0
    if number.isdecimal() and len(number) < 4:
        api = int(number)
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
    yield _count_processes(device, api)


def _count_processes(device: Device, api: int) -> Finding:
    count = 0  # visible processes: Android hides those of other apps
    for path in (device.root / "proc").iterdir():
        count += path.name.isdigit()
    fix = PHANTOM_FIX_12
    if api != PHANTOM_API:
        fix = PHANTOM_FIX
    finding = ok
    if count >= MANY_PROCESSES:
        finding = warning
    return finding(
        "processes",
        f"Termux has {count} processes; Android ends some when all apps together "
        "have more than 32",
        fix,
    )


def check_last_run(device: Device, config: Config) -> Iterator[Finding]:
    """Report whether the last server was killed recently."""
    run = killed(config.state_dir)
    if run is None or device.now - run.started > RECENT_S:
        yield ok("last run", "no server was killed lately")
    else:
        yield warning("last run", *tell(device, run))


def tell(device: Device, run: Run) -> tuple[str, str]:
    """Return how a killed server ended, and the fix."""
    boot = boot_id(device.root / "proc/sys/kernel/random/boot_id")
    started = time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.started))
    server = f"the server that started at {started} UTC (process {run.pid})"
    if boot and run.boot and boot != run.boot:
        return f"{server} ended with a restart of the device", "pocketserve serve"
    if on_android(device):
        fix = (
            "termux-wake-lock && pocketserve serve --memory-budget 300M; "
            "and see docs/termux.md, 'Signal 9'"
        )
        return f"{server} was killed, most likely by Android", fix
    return f"{server} was killed", "pocketserve serve --memory-budget 500M"
