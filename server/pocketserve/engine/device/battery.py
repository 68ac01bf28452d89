"""Battery readings, from kernel files or Termux's program.

The program may hang forever and may start others. So it runs rarely, and never on a
thread that a request waits for.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pocketserve import system

PROGRAM = "termux-battery-status"
PROGRAM_TIMEOUT_S = 4.0
MAX_SUPPLIES, MAX_ZONES = 32, 128
MAX_FILE_BYTES = 64
SANE_C = (-40.0, 120.0)
SANE_PERCENT = (0.0, 100.0)


class Reading(NamedTuple):
    """A battery reading: percent, whether charging, and °C.

    None means unknown.
    """

    charge: float | None = None
    charging: bool | None = None
    heat: float | None = None


class Battery:
    """The device's battery.

    ``program`` is called if the files have no data; None if it is not installed.
    """

    def __init__(
        self,
        root: Path | None = None,
        find_program: Callable[[str], str | None] | None = None,
    ) -> None:
        root = root or system.root()
        self._supplies = _batteries(root / "sys/class/power_supply")
        self._zones = _battery_zones(root / "sys/class/thermal")
        self.program = (find_program or _find_program)(PROGRAM)
        self._lock = threading.Lock()
        self._given_up = False
        self._stop: int | None = None

    @property
    def tells_nothing(self) -> bool:
        """Return whether no battery can be read, now or later."""
        return not self._supplies and not self._zones and self.program is None

    def read_files(self) -> Reading:
        """Return the kernel's values; most devices hide some from apps.

        This takes well below a millisecond.
        """
        charges: list[float] = []
        states: list[str] = []
        for folder in self._supplies:
            percent = _sane(_number(folder / "capacity"), *SANE_PERCENT)
            if percent is not None:
                charges.append(percent)
            state = _read(folder / "status")
            if state not in ("", "Unknown"):
                states.append(state)
        charging = None
        if states:
            charging = any(state != "Discharging" for state in states)
        return Reading(max(charges, default=None), charging, self._heat())

    def _heat(self) -> float | None:
        heats: list[float] = []
        for folder in self._supplies:
            heats += _degrees(folder / "temp", 10)
        for folder in self._zones:
            heats += _degrees(folder / "temp", 1000)
        return max(heats, default=None)

    def ask_program(self) -> Reading | None:
        """Return the values from Termux's program; None after five seconds."""
        # Imported late: most servers never run the program.
        from pocketserve.engine.device.programs import run_program

        with self._lock:
            if self.program is None or self._given_up:
                return None
            stopped, self._stop = os.pipe()
        try:
            return read_status(
                run_program([self.program], PROGRAM_TIMEOUT_S, stop=stopped).output
            )
        finally:
            with self._lock:
                self._close_stop()
            os.close(stopped)

    def give_up(self) -> None:
        """Stop the program for good: it must not outlive the server."""
        with self._lock:
            self._given_up = True
            self._close_stop()

    def _close_stop(self) -> None:
        if self._stop is not None:
            os.close(self._stop)  # its other end becomes readable
            self._stop = None


def read_status(text: str) -> Reading | None:
    """Parse the output of ``termux-battery-status``; None if invalid."""
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(status, dict) or "percentage" not in status:
        return None
    plugged = status.get("plugged")
    return Reading(
        charge=_sane(status["percentage"], *SANE_PERCENT),
        charging=plugged != "UNPLUGGED" if isinstance(plugged, str) else None,
        heat=_sane(status.get("temperature"), *SANE_C),
    )


def _sane(value: object, low: float, high: float) -> float | None:
    """Return a number within limits, else None.

    Devices report -1, for example, for an unknown value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if low <= value <= high else None


def _degrees(path: Path, scale: int) -> list[float]:
    """Return the temperature in a file, if it makes sense.

    Some kernels use other units, which are ignored rather than guessed.
    """
    value = _number(path)
    if not value:
        return []
    degrees = _sane(value / scale, *SANE_C)
    return [] if degrees is None else [degrees]


def _find_program(name: str) -> str | None:
    """Find a program in ``PATH``.

    ``shutil.which`` would import three compressors.
    """
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _batteries(folder: Path) -> list[Path]:
    """List the device's own batteries, not those of peripherals."""
    batteries = []
    for supply in _listed(folder, "", MAX_SUPPLIES):
        is_battery = _read(supply / "type") == "Battery"
        if is_battery and _read(supply / "scope") != "Device":
            batteries.append(supply)
    return batteries


def _battery_zones(folder: Path) -> list[Path]:
    """List the thermal zones of batteries.

    A processor's is hot under any load.
    """
    zones = []
    for zone in _listed(folder, "thermal_zone", MAX_ZONES):
        if _read(zone / "type").lower().startswith("batt"):
            zones.append(zone)
    return zones


def _listed(folder: Path, prefix: str, maximum: int) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in paths if path.name.startswith(prefix)][:maximum]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(int(_read(path)))
    except ValueError:
        return None
