"""The end of the last server, if it was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pocketserve.doctor.android import on_android
from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, warning
from pocketserve.doctor.settings import Settings
from pocketserve.state.run_lock import boot_id, killed
from pocketserve_wire.files.run_file import Run

RECENT_S = 86_400.0


def check_last_run(device: Device, settings: Settings) -> Iterator[Finding]:
    """Android kills without a word; the mark of a server that ran tells of it."""
    run = killed(settings.config.state_dir) if settings.config is not None else None
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
