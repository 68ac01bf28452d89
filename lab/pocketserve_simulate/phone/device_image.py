"""The Android look of a phone: environment, programs of Termux, and the files in which a system describes itself."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import site
import struct
from collections.abc import Mapping
from pathlib import Path

from pocketserve.config import PREFIX
from pocketserve.system import VARIABLE
from pocketserve_simulate.phone.device import CoreMap, PhoneModel
from pocketserve_simulate.phone.events import Condition

APP = "data/data/com.termux/files"
TERMUX_VERSION = "0.118.3"
DESKTOP_ONLY = ("TMP", "TEMP", "DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS")
PACKAGES = (
    "POCKETSERVE_TFJS_MODULES",
)  # variables of ours about the desktop's packages, not its own server
COOL_C = 31.0
BATTERY = {  # printed by ``termux-battery-status``; the fields of Termux:API's BatteryStatusAPI
    "present": True,
    "technology": "Li-ion",
    "health": "GOOD",
    "plugged": "UNPLUGGED",
    "status": "DISCHARGING",
    "temperature": COOL_C,
    "voltage": 3850,
    "current": -310_000,
    "percentage": 76,
    "level": 76,
    "scale": 100,
}
SITE = """\
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # the one that this shadows
except ImportError:
    sys.modules["sitecustomize"] = own
from pocketserve_simulate.phone.clock import install
install()
"""


class DeviceImage:
    """The files of a phone; those of an earlier run stay, and those of another run are not changed (``is_guest``)."""

    def __init__(self, folder: Path, model: PhoneModel, cores: CoreMap) -> None:
        self.folder = folder.absolute()
        self.prefix = self.folder / APP / "usr"
        self.home = self.folder / APP / "home"
        self.root = self.folder / "root"
        self._site = self.folder / "site"
        self._model = model
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_guest = False
        except OSError:
            self.is_guest = True
            return
        for path in (self.prefix / "tmp", self.prefix / "etc", self.home):
            path.mkdir(parents=True, exist_ok=True)
        self._make_system_files(cores)
        self._make_programs()
        _replace(self._site / "sitecustomize.py", SITE)

    def close(self) -> None:
        """Leave the phone to the next run."""
        os.close(self._lock)

    def environment(self, desktop: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a process on the phone.

        Those of the desktop that say where Python and its packages are stay in force, settings of ours do not: a phone
        has its own state, token and ports.
        """
        excluded = {*DESKTOP_ONLY, *desktop_settings(desktop)}
        path = [str(self._site), *filter(None, [desktop.get("PYTHONPATH")])]
        return {
            **{
                name: value
                for name, value in desktop.items()
                if name not in excluded and name[:4] != "XDG_"
            },
            VARIABLE: str(self.folder),
            "ANDROID_DATA": "/data",
            "ANDROID_ROOT": "/system",
            "HOME": str(self.home),
            "PATH": os.pathsep.join(
                [str(self.prefix / "bin"), desktop.get("PATH", os.defpath)]
            ),
            "PREFIX": str(self.prefix),
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUSERBASE": site.getuserbase(),  # HOME would lead elsewhere
            "TERMUX_VERSION": TERMUX_VERSION,
            "TMPDIR": str(self.prefix / "tmp"),
        }

    def show(self, condition: Condition) -> None:
        """Show battery, heat and wall clock as they are under a condition."""
        if self.is_guest:
            return
        _replace(
            self.folder / "battery.json",
            json.dumps({**BATTERY, **condition.battery}, indent=2) + "\n",
        )
        hangs = self.folder / "battery-hangs"
        hangs.unlink(missing_ok=True) if condition.api_answers else hangs.touch()
        degrees = COOL_C if condition.heat is None else condition.heat
        _replace(
            self.root / "sys/class/thermal/thermal_zone0/temp",
            f"{round(degrees * 1000)}\n",
        )
        with open(
            os.open(self.folder / "clock", os.O_WRONLY | os.O_CREAT, 0o600), "wb"
        ) as file:
            file.write(
                struct.pack("d", condition.clock)
            )  # in place, since it is read through a mapping

    def set_memory(self, available: int) -> None:
        """Show so many bytes as available in ``/proc/meminfo``."""
        total = max(self._model.total_mb * 10**6, available)
        lines = f"MemTotal: {total // 1024} kB\nMemFree: {available // 2048} kB\nMemAvailable: {available // 1024} kB\n"
        if not self.is_guest:
            _replace(self.root / "proc/meminfo", lines)

    def list_process(self, pid: int | None) -> None:
        """Show this process alone in ``/proc``: Android shows an app its own only."""
        if self.is_guest:
            return
        for path in (self.root / "proc").iterdir():
            if path.name.isdigit():
                path.unlink(missing_ok=True)
        if pid is not None:
            (self.root / "proc" / str(pid)).symlink_to(f"/proc/{pid}")

    def _make_system_files(self, cores: CoreMap) -> None:
        """Make ``/proc`` and ``/sys`` as far as Android lets an app read them."""
        proc = self.root / "proc"
        proc.mkdir(parents=True, exist_ok=True)
        for name in ("self", "sys"):
            if not (proc / name).is_symlink():
                (proc / name).symlink_to(f"/proc/{name}")
        for core in cores.all:
            khz = self._model.fast_khz if core in cores.fast else self._model.slow_khz
            _replace(
                self.root
                / f"sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq",
                f"{khz}\n",
            )
        _replace(self.root / "sys/class/thermal/thermal_zone0/type", "cpu\n")
        self.list_process(None)

    def _make_programs(self) -> None:
        """Make stand-ins for the programs of Termux and Android that something here runs."""
        folder = shlex.quote(str(self.folder))
        programs = {
            "termux-battery-status": f"[ -e {folder}/battery-hangs ] && exec sleep 60\ncat {folder}/battery.json",
            "termux-wake-lock": f": > {folder}/wake-lock",
            "termux-wake-unlock": f"rm -f {folder}/wake-lock",
            "getprop": f'[ "$1" = ro.build.version.sdk ] && echo {self._model.api} || echo',
            "settings": "echo null",
        }
        for name, script in programs.items():
            path = self.prefix / "bin" / name
            _replace(path, f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)


def desktop_settings(desktop: Mapping[str, str]) -> list[str]:
    """Return the variables of ours that stay on the desktop."""
    return sorted(
        name
        for name in desktop
        if name.startswith(PREFIX) and name not in (*PACKAGES, VARIABLE)
    )


def _replace(path: Path, content: str) -> None:
    """Write a file that others may be reading: it is the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(content)
    temporary.replace(path)
