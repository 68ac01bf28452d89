"""Run all checks concurrently, within one time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pocketserve.doctor import (
    android,
    hardware,
    models,
    packages,
    ports,
    python,
    server,
    stopped,
    token,
)
from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Check, Finding, warning
from pocketserve.doctor.settings import Settings

if TYPE_CHECKING:
    from pocketserve.config import Config

LIMIT_S = 15.0  # for all checks together; those that start processes have 10 s


def examine(
    device: Device, settings: Settings, limit: float = packages.LIMIT_S
) -> list[Finding]:
    """Run every check."""
    checks: dict[str, Check] = {
        "python": lambda: python.check_python(device),
        "termux": lambda: python.check_play_store(device),
        "upgrade": lambda: python.check_upgrade(device),
        "packages": lambda: packages.check_packages(device, limit),
        "settings": lambda: settings.findings,
    }
    if settings.config is not None:
        checks |= _checks_with_config(device, settings.config, limit)
    checks |= {
        "trials": lambda: models.check_trials(device, limit),
        "server": lambda: server.check_server(device, settings),
        "server process": lambda: stopped.check_stopped_servers(device, settings),
        "cores": lambda: hardware.check_cores(device),
        "memory": lambda: hardware.check_memory(device, settings),
        "clock": lambda: hardware.check_clock(device),
        "wake lock": lambda: android.check_wake_lock(device, settings),
        "battery": lambda: android.check_battery(device, settings),
        "processes": lambda: android.check_phantom_processes(device),
    }
    return run_checks(checks, LIMIT_S)


def _checks_with_config(
    device: Device, config: Config, limit: float
) -> dict[str, Check]:
    return {
        "models": lambda: models.check_models(device, config, limit),
        "token": lambda: token.check_token(device, config),
        "ports": lambda: ports.check_ports(device, config),
        "last run": lambda: android.check_last_run(device, config),
        "disk": lambda: hardware.check_disk(device, config),
    }


def run_checks(checks: Mapping[str, Check], limit: float) -> list[Finding]:
    """Run checks concurrently; failures become findings."""
    deadline = time.monotonic() + limit
    results: dict[str, list[Finding]] = {}
    threads = {}
    for subject, check in checks.items():
        threads[subject] = _start(subject, check, results)
    findings: list[Finding] = []
    for subject, thread in threads.items():
        remaining = deadline - time.monotonic()
        thread.join(max(0.0, remaining))
        findings += results.get(subject, [_slow(subject, limit)])
    return findings


def _slow(subject: str, limit: float) -> Finding:
    return warning(
        subject,
        f"checking it took longer than {limit:g} s",
        "pocketserve doctor --debug",
    )


def _start(
    subject: str, check: Check, results: dict[str, list[Finding]]
) -> threading.Thread:
    thread = threading.Thread(
        target=_run,
        args=(subject, check, results),
        name=f"doctor-{subject}",
        daemon=True,
    )
    thread.start()
    return thread


def _run(subject: str, check: Check, results: dict[str, list[Finding]]) -> None:
    try:
        results[subject] = list(check())
    except Exception as error:  # a broken part must not hide the other findings
        text = f"it cannot be checked: {type(error).__name__}: {str(error)[:200]}"
        results[subject] = [warning(subject, text, "report this")]
