"""Everything that the checks look at, behind one seam: where the files of the system are, and how programs are run.

Only the standard library is used, here and in all checks: the doctor works where nothing else does.
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
MARK = "pocketserve-doctor:"  # begins a line that a process reports a JSON document in; frameworks may print around it


@dataclass(frozen=True)
class Device:
    """A device as the checks see it; the defaults are this one."""

    root: Path = field(
        default_factory=system.root
    )  # where ``/proc``, ``/sys`` and ``/system`` are
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    platform: str = field(
        default_factory=system.platform
    )  # ``android`` (Termux since Python 3.13) or ``linux``
    machine: str = field(default_factory=lambda: os.uname().machine)
    release: str = field(
        default_factory=lambda: os.uname().release
    )  # the kernel's release; proot-distro shows its own
    prefix: Path = Path(sys.prefix)  # where this Python's packages are
    python: tuple[int, int] = (sys.version_info.major, sys.version_info.minor)
    wide: bool = sys.maxsize > 2**32
    cores: Sequence[int] = field(
        default_factory=usable_cores
    )  # those this process may use now
    now: float = field(
        default_factory=time.time
    )  # seconds since 1970 by the device's clock
    suspended: float | None = field(
        default_factory=suspended_seconds
    )  # seconds since its start; None: unknown
    free_disk: Callable[[Path], int] = lambda folder: (
        shutil.disk_usage(folder).free
    )  # bytes left below a folder
    python_path: Sequence[str] = field(
        default_factory=lambda: [os.path.abspath(entry) for entry in sys.path]
    )

    @property
    def termux(self) -> bool:
        """Return whether this is Termux itself, not a Linux distribution inside of it."""
        return not self.proot and (
            self.platform == "android" or "com.termux" in self.environ.get("PREFIX", "")
        )

    @property
    def proot(self) -> bool:
        """Return whether this is a Linux distribution that runs under proot."""
        if "proot" in self.release.lower():
            return True
        tracer = next(
            (
                line
                for line in self.read("proc/self/status").splitlines()
                if line[:10] == "TracerPid:"
            ),
            "",
        )
        return tracer[10:].strip() not in ("", "0") and "proot" in self.read(
            f"proc/{tracer[10:].strip()}/comm"
        )

    def read(self, path: str) -> str:
        """Return the text of a system file; empty where it is missing or forbidden, as many are on Android."""
        try:
            with (self.root / path).open(errors="replace") as file:
                return file.read(MAX_FILE_BYTES)
        except OSError:
            return ""

    def find_program(self, program: str) -> str | None:
        """Return where a program is."""
        return shutil.which(program, path=self.environ.get("PATH", ""))

    def command(self, termux: str, elsewhere: str) -> str:
        """Return the one of two commands that fits this device."""
        return termux if self.termux else elsewhere

    def run_reporting(
        self, arguments: Sequence[str], timeout: float
    ) -> tuple[Outcome, list[dict[str, Any]]]:
        """Run this Python with the same search path; return how it ended and what it reported after marks."""
        path = os.pathsep.join(self.python_path)
        outcome = self.run([sys.executable, *arguments], timeout, {"PYTHONPATH": path})
        lines = (line for line in outcome.output.splitlines() if line.startswith(MARK))
        return outcome, [json.loads(line.removeprefix(MARK)) for line in lines]

    def run(
        self,
        command: Sequence[str],
        timeout: float,
        variables: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run a program as :func:`run_program` does, with further environment variables."""
        return run_program(command, timeout, {**self.environ, **(variables or {})})
