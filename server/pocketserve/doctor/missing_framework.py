"""The command that installs the framework of a version that cannot be served."""

from __future__ import annotations

import re

MISSING = (
    r"(?:no framework for .+ models is|(?:TensorFlow|Node)\.js is not) installed: (.+)"
)


def missing_command(reason: str) -> str:
    """Return the command that installs the framework on this device.

    It is empty if the reason is another one than a missing framework.
    """
    missing = re.fullmatch(MISSING, reason)
    if missing is None:
        return ""
    # Late: few lists of models need it.
    from pocketserve.doctor.device import Device

    elsewhere, _, termux = missing[1].partition("; ")
    return Device().command(termux.removeprefix("in Termux: ") or elsewhere, elsewhere)
