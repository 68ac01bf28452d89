"""The Android environment of a phone: variables, programs of Termux, system files."""

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
PACKAGES = ("POCKETSERVE_TFJS_MODULES",)
"""Our variables about packages of the desktop, rather than about its server."""

COOL_C = 31.0
BATTERY = {
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
"""The output of ``termux-battery-status``, with the fields of Termux:API."""
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
    """The files of a phone.

    Files of an earlier run are kept. If another run uses the folder, they are not
    changed (``is_guest``).
    """

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
        """Release the phone for the next run."""
        os.close(self._lock)

    def environment(self, desktop: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a process on the phone.

        The desktop's settings of Python stay in force, but not our own settings: a
        phone has its own state, token and ports.
        """
        excluded = {*DESKTOP_ONLY, *desktop_settings(desktop)}
        variables = {}
        for name, value in desktop.items():
            if name not in excluded and not name.startswith("XDG_"):
                variables[name] = value
        programs = [str(self.prefix / "bin"), desktop.get("PATH", os.defpath)]
        modules = [str(self._site)]
        if desktop.get("PYTHONPATH"):
            modules.append(desktop["PYTHONPATH"])
        return {
            **variables,
            VARIABLE: str(self.folder),
            "ANDROID_DATA": "/data",
            "ANDROID_ROOT": "/system",
            "HOME": str(self.home),
            "PATH": os.pathsep.join(programs),
            "PREFIX": str(self.prefix),
            "PYTHONPATH": os.pathsep.join(modules),
            # Python would derive it from HOME.
            "PYTHONUSERBASE": site.getuserbase(),
            "TERMUX_VERSION": TERMUX_VERSION,
            "TMPDIR": str(self.prefix / "tmp"),
        }

    def show(self, condition: Condition) -> None:
        """Show battery, heat and wall clock under a condition."""
        if self.is_guest:
            return
        battery = json.dumps({**BATTERY, **condition.battery}, indent=2)
        _replace(self.folder / "battery.json", f"{battery}\n")
        hangs = self.folder / "battery-hangs"
        if condition.api_answers:
            hangs.unlink(missing_ok=True)
        else:
            hangs.touch()
        degrees = condition.heat
        if degrees is None:
            degrees = COOL_C
        millidegrees = round(degrees * 1000)
        temperature = self.root / "sys/class/thermal/thermal_zone0/temp"
        _replace(temperature, f"{millidegrees}\n")
        self._set_clock(condition.clock)

    def _set_clock(self, offset: float) -> None:
        """Write the clock's offset in place: processes read it through a mapping."""
        descriptor = os.open(self.folder / "clock", os.O_WRONLY | os.O_CREAT, 0o600)
        with open(descriptor, "wb") as file:
            file.write(struct.pack("d", offset))

    def set_memory(self, available: int) -> None:
        """Show so many bytes as available in ``/proc/meminfo``."""
        if self.is_guest:
            return
        total = max(self._model.total_mb * 10**6, available)
        lines = (
            f"MemTotal: {total // 1024} kB\n"
            f"MemFree: {available // 2048} kB\n"
            f"MemAvailable: {available // 1024} kB\n"
        )
        _replace(self.root / "proc/meminfo", lines)

    def list_process(self, pid: int | None) -> None:
        """Show only this process in ``/proc``: Android shows an app only its own."""
        if self.is_guest:
            return
        for path in (self.root / "proc").iterdir():
            if path.name.isdigit():
                path.unlink(missing_ok=True)
        if pid is not None:
            (self.root / "proc" / str(pid)).symlink_to(f"/proc/{pid}")

    def _make_system_files(self, cores: CoreMap) -> None:
        """Make the parts of ``/proc`` and ``/sys`` that Android apps may read."""
        proc = self.root / "proc"
        proc.mkdir(parents=True, exist_ok=True)
        for name in ("self", "sys"):
            link = proc / name
            if not link.is_symlink():
                link.symlink_to(f"/proc/{name}")
        cpu = self.root / "sys/devices/system/cpu"
        for core in cores.all:
            khz = self._model.slow_khz
            if core in cores.fast:
                khz = self._model.fast_khz
            _replace(cpu / f"cpu{core}/cpufreq/cpuinfo_max_freq", f"{khz}\n")
        _replace(self.root / "sys/class/thermal/thermal_zone0/type", "cpu\n")
        self.list_process(None)

    def _make_programs(self) -> None:
        """Make replacements for the programs of Termux and Android that we run."""
        folder = shlex.quote(str(self.folder))
        battery = (
            f"[ -e {folder}/battery-hangs ] && exec sleep 60\ncat {folder}/battery.json"
        )
        is_sdk = '[ "$1" = ro.build.version.sdk ]'
        programs = {
            "termux-battery-status": battery,
            "termux-wake-lock": f": > {folder}/wake-lock",
            "termux-wake-unlock": f"rm -f {folder}/wake-lock",
            "getprop": f"{is_sdk} && echo {self._model.api} || echo",
            "settings": "echo null",
        }
        for name, script in programs.items():
            path = self.prefix / "bin" / name
            _replace(path, f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)


def desktop_settings(desktop: Mapping[str, str]) -> list[str]:
    """Return our variables that stay on the desktop."""
    names = []
    for name in sorted(desktop):
        if name.startswith(PREFIX) and name not in (*PACKAGES, VARIABLE):
            names.append(name)
    return names


def _replace(path: Path, content: str) -> None:
    """Write a file atomically: others may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(content)
    temporary.replace(path)
