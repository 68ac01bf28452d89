"""The kind of system and where its files are, as all code here sees it: one seam, for simulated phones.

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
_LOOPBACK = re.compile(
    r"127(?:\.(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3}", re.ASCII
)  # RFC 5735, section 3
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""The usual names of this device."""


def simulation() -> Path | None:
    """Return the folder of the simulated phone that this process runs on; None on a real device."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def platform() -> str:
    """Return ``sys.platform``: ``android`` in Termux since Python 3.13, ``linux`` before it and on desktops."""
    return "android" if simulation() else sys.platform


def root() -> Path:
    """Return the folder that holds the system's ``proc`` and ``sys``."""
    folder = simulation()
    return folder / "root" if folder else Path("/")


def is_loopback(host: str) -> bool:
    """Return whether an IPv4 address in decimal form is one of 127.0.0.0/8, which no network leads to."""
    return _LOOPBACK.fullmatch(host) is not None


def binds_loopback(host: str) -> bool:
    """Return whether a server that binds this name or address is reached from this device alone."""
    return host in LOOPBACK_HOSTS or is_loopback(host)
