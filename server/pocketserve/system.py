"""The platform and its files, with one hook for simulated phones.

``pocketserve simulate`` names a folder in an environment variable, which the processes on the phone hand on to those
they start. There the platform is ``android``, and what the system tells of itself (``/proc``, ``/sys``) is read from
below that folder. Nothing else is redirected: models, the state folder and the network are real.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

VARIABLE = "POCKETSERVE_SIMULATION"
# RFC 5735, section 3
_LOOPBACK = r"127(?:\.(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""The usual names of this device."""


def simulation() -> Path | None:
    """Return the simulated phone's folder, None on a real device."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def platform() -> str:
    """Return ``sys.platform``, ``android`` or ``linux`` in Termux.

    It is ``android`` since Python 3.13.
    """
    return "android" if simulation() else sys.platform


def root() -> Path:
    """Return the folder that holds the system's ``proc`` and ``sys``."""
    folder = simulation()
    return folder / "root" if folder else Path("/")


def is_loopback(host: str) -> bool:
    """Return whether an IPv4 address is in 127.0.0.0/8."""
    return re.fullmatch(_LOOPBACK, host) is not None


def binds_loopback(host: str) -> bool:
    """Return whether an address is reachable from this device only."""
    return host in LOOPBACK_HOSTS or is_loopback(host)
