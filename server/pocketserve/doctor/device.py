"""Everything that the checks look at, behind one seam: where the files of the system are, and how programs are run.

Only the standard library is used, here and in all checks: the doctor works where nothing else does.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pocketserve.engine.cores import usable_cores
from pocketserve.run_marker import suspended_seconds

MAX_OUTPUT_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 20
END_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended.

    Attributes:
        code: its exit code, negative for a signal; None when it was not there or had to be ended.
        output: what it printed, even if it had to be ended.
        timed_out: whether it had to be ended.
    """

    code: int | None
    output: str
    timed_out: bool = False


@dataclass(frozen=True)
class Device:
    """A device as the checks see it; the defaults are this one.

    Attributes:
        root: where ``/proc``, ``/sys`` and ``/system`` are.
        platform: ``android`` (Termux since Python 3.13) or ``linux``.
        release: the kernel's release; proot-distro shows its own.
        prefix: where this Python's packages are.
        python: its version, such as (3, 14).
        cores: those this process may use now.
        now: seconds since 1970 by the device's clock.
        suspended: seconds that the device has slept since it was started; None if the system does not tell.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    platform: str = sys.platform
    machine: str = field(default_factory=lambda: os.uname().machine)
    release: str = field(default_factory=lambda: os.uname().release)
    prefix: Path = Path(sys.prefix)
    python: tuple[int, int] = (sys.version_info.major, sys.version_info.minor)
    wide: bool = sys.maxsize > 2**32
    cores: Sequence[int] = field(default_factory=usable_cores)
    now: float = field(default_factory=time.time)
    suspended: float | None = field(default_factory=suspended_seconds)
    python_path: Sequence[str] = field(default_factory=lambda: [os.path.abspath(entry) for entry in sys.path])

    @property
    def termux(self) -> bool:
        """Whether this is Termux itself, not a Linux distribution inside of it."""
        return not self.proot and (self.platform == "android" or "com.termux" in self.environ.get("PREFIX", ""))

    @property
    def proot(self) -> bool:
        """Whether this is a Linux distribution that runs under proot."""
        if "proot" in self.release.lower():
            return True
        tracer = next((line for line in self.read("proc/self/status").splitlines() if line[:10] == "TracerPid:"), "")
        return tracer[10:].strip() not in ("", "0") and "proot" in self.read(f"proc/{tracer[10:].strip()}/comm")

    def read(self, path: str) -> str:
        """The text of a system file; empty where it is missing or forbidden, as many are on Android."""
        try:
            with (self.root / path).open(errors="replace") as file:
                return file.read(MAX_FILE_BYTES)
        except OSError:
            return ""

    def which(self, program: str) -> str | None:
        """Where a program is."""
        return shutil.which(program, path=self.environ.get("PATH", ""))

    def command(self, termux: str, elsewhere: str) -> str:
        """The one of two commands that fits this device."""
        return termux if self.termux else elsewhere

    def run_python(self, arguments: Sequence[str], timeout: float) -> Outcome:
        """Run this Python with the same search path."""
        path = os.pathsep.join(self.python_path)
        return self.run([sys.executable, *arguments], timeout, {"PYTHONPATH": path})

    def run(self, command: Sequence[str], timeout: float, variables: Mapping[str, str] | None = None) -> Outcome:
        """Run a program and end it, with all that it started, when its time is over. Never raises, never waits longer.

        Args:
            timeout: seconds; about one more passes until a program that had to be ended is gone.
        """
        ends = time.monotonic() + timeout
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**self.environ, **(variables or {})},
                start_new_session=True,  # so that its own children end with it
            )
        except (OSError, ValueError):
            return Outcome(None, "")
        output = b""
        try:
            output = _read_until(process, ends)
            return Outcome(process.wait(max(0.0, ends - time.monotonic())), output.decode(errors="replace"))
        except subprocess.TimeoutExpired:
            return Outcome(None, output.decode(errors="replace"), timed_out=True)
        finally:
            _end(process)


def _read_until(process: subprocess.Popen[bytes], ends: float) -> bytes:
    """What it prints until its end, or the time's; a program that prints without end is cut off."""
    assert process.stdout is not None
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) < MAX_OUTPUT_BYTES and (left := ends - time.monotonic()) > 0:
            if not selector.select(left):
                break
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            output += chunk
    return bytes(output)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is not waited for
        process.wait(END_GRACE_S)
    if process.stdout is not None:
        process.stdout.close()
