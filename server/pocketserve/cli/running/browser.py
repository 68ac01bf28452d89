"""Open this device's browser: Android's from Termux, or a desktop's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

TERMUX: Final = "termux-open-url"  # of termux-tools, which every Termux has
TERMUX_TIMEOUT_S: Final = 20.0
"""Android's command starts a Java VM, which takes seconds on old phones."""
DISPLAYS: Final = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def open_browser(address: str) -> bool:
    """Open an address; return whether a browser started.

    Terminal browsers don't count, since they run no scripts.
    """
    if shutil.which(TERMUX) is not None:
        return _open_in_termux(address)
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in DISPLAYS):
        return False
    import webbrowser  # late: it searches for installed browsers

    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


def _open_in_termux(address: str) -> bool:
    try:
        result = subprocess.run(
            [TERMUX, address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TERMUX_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0
