"""Simulate a healthy phone in a folder, into which tests plant problems."""

from __future__ import annotations

import dataclasses
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.config import Config
from pocketserve.doctor.checkup import examine
from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, Level
from pocketserve.doctor.settings import Settings, read_settings
from ports import free_port

SHELL = "/bin/sh"
BATTERY = '{"percentage": 80, "temperature": 31.5, "plugged": "UNPLUGGED"}'
GOOD_PACKAGES = (
    *("flask", "waitress", "requests", "platformdirs", "prometheus_client"),
    "PIL/Image",
)
LITTLE = 1_800_000
BIG = 3_000_000
NOW = 1_790_000_000.0


@dataclass
class Phone:
    """A Termux device in a folder.

    Attributes:
        changes: fields of the Device that differ.
        environ: its environment, settings of the server included.
    """

    base: Path
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    environ: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for core in range(8):
            self.file(
                f"root/sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq",
                f"{BIG if core > 3 else LITTLE}\n",
            )
        self.file(
            "root/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n"
        )
        self.file("root/proc/self/status", "TracerPid:\t0\n")
        self.tool("getprop", "echo 34")
        self.tool("settings", "echo null")
        self.tool("termux-wake-lock", ":")
        self.tool("termux-battery-status", f"echo '{BATTERY}'")
        for name in (*GOOD_PACKAGES, "tflite_runtime/interpreter"):
            self.package(name)
        # The real one, which is needed to read manifests.
        for path in Path(np.__file__).parents[1].glob("numpy*"):
            (self.site / path.name).symlink_to(path)
        self.home.mkdir()
        self.models.mkdir()
        self.file("home/models/free.tflite", "")
        self.environ |= {
            "PATH": str(self.base / "bin"),
            "PREFIX": "/data/data/com.termux/files/usr",
            "POCKETSERVE_STATE_DIR": str(self.state),
            "POCKETSERVE_TOKEN_FILE": str(self.home / "token"),
            "POCKETSERVE_MODELS_DIR": str(self.models),
            "POCKETSERVE_HTTP_PORT": str(free_port()),
            "POCKETSERVE_SOCKET_PORT": str(free_port()),
        }

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def site(self) -> Path:
        return self.base / "usr/lib/python3.14/site-packages"

    def file(self, path: str, content: str) -> Path:
        """Write a file below the base."""
        target = self.base / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        return target

    def tool(self, name: str, script: str) -> None:
        """Write a program on the PATH."""
        path = self.file(f"bin/{name}", f"#!{SHELL}\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def without(self, name: str) -> None:
        """Remove a package or a tool."""
        for path in (self.site / name, self.base / "bin" / name):
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)

    def package(self, name: str, code: str = "__version__ = '1.0'") -> None:
        """Write a Python module; its top package gets the same code, so that importing
        either runs it.
        """
        top, _, module = name.partition("/")
        self.file(f"usr/lib/python3.14/site-packages/{top}/__init__.py", code + "\n")
        if module:
            self.file(f"usr/lib/python3.14/site-packages/{top}/{module}.py", "")

    def device(self) -> Device:
        """Return the device, with the project's source after its own packages."""
        import pocketserve
        import pocketserve_wire

        sources = []
        for package in (pocketserve, pocketserve_wire):
            sources.append(str(Path(package.__path__[0]).parent))
        standard: dict[str, Any] = {
            "root": self.base / "root",
            "environ": self.environ,
            "platform": "android",
            "machine": "aarch64",
            "release": "5.15.0-android",
            "prefix": self.base / "usr",
            "python": (3, 14),
            "wide": True,
            "cores": range(8),
            "now": NOW,
            "suspended": 0.0,
            "python_path": [str(self.site), *sources],
        }
        return Device(**(standard | self.changes))

    def settings(self) -> Settings:
        return read_settings(self.device())

    def config(self) -> Config:
        config = self.settings().config
        assert config is not None
        return config

    def examine(self, limit: float = 10.0) -> list[Finding]:
        """Return all findings of the doctor."""
        return examine(self.device(), self.settings(), limit)

    def complaints(self, limit: float = 10.0) -> list[Finding]:
        """Return the findings that aren't OK."""
        return [
            finding for finding in self.examine(limit) if finding.level is not Level.OK
        ]
