"""The device as the checks see it, replaceable in tests.

The doctor uses only the standard library, so that it works with broken packages.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketserve import system
from pocketserve.engine.device.cores import usable_cores
from pocketserve.engine.device.programs import Outcome, run_program
from pocketserve.state.run_lock import suspended_seconds

MAX_FILE_BYTES = 1 << 20
MARK = "pocketserve-doctor:"
"""Prefix of the lines with a process's JSON reports, among a framework's output."""


@dataclass(frozen=True)
class Device:
    """A device; the default values describe this one.

    Attributes:
        root: contains ``/proc``, ``/sys`` and ``/system``.
        platform: ``android`` (Termux since Python 3.13) or ``linux``.
        release: the kernel's release; proot-distro shows its own.
        prefix: contains this Python's packages.
        cores: the cores that this process may use now.
        now: seconds since 1970 by the device's clock.
        suspended: seconds of sleep since its boot; None if unknown.
        free_disk: returns the free bytes in a folder.
    """

    root: Path = field(default_factory=system.root)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    platform: str = field(default_factory=system.platform)
    machine: str = field(default_factory=lambda: os.uname().machine)
    release: str = field(default_factory=lambda: os.uname().release)
    prefix: Path = Path(sys.prefix)
    python: tuple[int, int] = (sys.version_info.major, sys.version_info.minor)
    wide: bool = sys.maxsize > 2**32
    cores: Sequence[int] = field(default_factory=usable_cores)
    now: float = field(default_factory=time.time)
    suspended: float | None = field(default_factory=suspended_seconds)
    free_disk: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    python_path: Sequence[str] = field(
        default_factory=lambda: list(map(os.path.abspath, sys.path))
    )

    @property
    def termux(self) -> bool:
        """Return whether this is Termux, without proot."""
        if self.proot:
            return False
        prefix = self.environ.get("PREFIX", "")
        return self.platform == "android" or "com.termux" in prefix

    @property
    def proot(self) -> bool:
        """Return whether this is a Linux distribution under proot."""
        if "proot" in self.release.lower():
            return True
        tracer = ""
        for line in self.read("proc/self/status").splitlines():
            if line.startswith("TracerPid:"):
                tracer = line.partition(":")[2].strip()
        if tracer in ("", "0"):
            return False
        return "proot" in self.read(f"proc/{tracer}/comm")

    def read(self, path: str) -> str:
        """Return the text of a system file, or ""."""
        try:
            with (self.root / path).open(errors="replace") as file:
                return file.read(MAX_FILE_BYTES)
        except OSError:
            return ""

    def find_program(self, program: str) -> str | None:
        """Return the path of a program, or None."""
        return shutil.which(program, path=self.environ.get("PATH", ""))

    def command(self, termux: str, elsewhere: str) -> str:
        """Return the command for Termux, or for other systems."""
        if self.termux:
            return termux
        return elsewhere

    def run_reporting(
        self, arguments: Sequence[str], timeout: float
    ) -> tuple[Outcome, list[dict[str, Any]]]:
        """Run this Python; return the outcome and its reports."""
        path = os.pathsep.join(self.python_path)
        outcome = self.run([sys.executable, *arguments], timeout, {"PYTHONPATH": path})
        reports = []
        for line in outcome.output.splitlines():
            if line.startswith(MARK):
                reports.append(json.loads(line.removeprefix(MARK)))
        return outcome, reports

    def run(
        self,
        command: Sequence[str],
        timeout: float,
        variables: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run a program as :func:`run_program` does, with additional variables."""
        return run_program(command, timeout, {**self.environ, **(variables or {})})
