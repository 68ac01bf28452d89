"""Confinement of the trials of unseen model files on this device."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, warning

CARE = "only load files of people whom you trust"


def check_trials(device: Device, limit: float) -> Iterator[Finding]:
    """Confine a process as a trial is, and look what holds."""
    outcome, _ = device.run_reporting(["-m", "pocketserve.quarantine.sandbox", "--probe"], limit)
    try:
        probe = json.loads(outcome.output)
    except ValueError:
        yield warning("trials", "whether trials are confined is not known: the process that looks failed", CARE)
        return
    if probe["confined"]:
        yield ok("trials", f"trials of unseen files are confined: {probe['sentence']}")
    else:
        yield warning("trials", f"trials of unseen files are not confined: {probe['sentence']}", CARE)
