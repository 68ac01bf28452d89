"""Servers whose process exists but can't run: stopped by a signal, or frozen by Android."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem
from pocketserve.doctor.settings import Settings
from pocketserve.state.run_lock import running_servers

SUBJECT = "server process"
STOPPED_STATES = frozenset("Tt")  # by a signal; by a debugger
CGROUPS = PurePosixPath("sys/fs/cgroup")


def check_stopped_servers(device: Device, settings: Settings) -> Iterator[Finding]:
    """Report running servers that accept connections and can't answer."""
    if settings.config is None:
        return
    servers = running_servers(settings.config.state_dir)
    stopped = 0
    for run in servers:
        if _state(device, run.pid) in STOPPED_STATES:
            stopped += 1
            text = f"the server (process {run.pid}) is stopped and answers nobody"
            yield problem(SUBJECT, text, f"kill -CONT {run.pid}")
        elif is_frozen(device, run.pid):
            stopped += 1
            text = f"the server (process {run.pid}) is frozen and answers nobody"
            fix = "open Termux; and see docs/termux.md, 'It hangs until I open Termux'"
            yield problem(SUBJECT, text, fix)
    if servers and not stopped:
        yield ok(SUBJECT, "no running server is stopped or frozen")


def _state(device: Device, pid: int) -> str:
    """Return the state letter of a process; empty if it can't be read."""
    # The program's name, in parentheses, may contain anything.
    _, _, after_name = device.read(f"proc/{pid}/stat").rpartition(")")
    return after_name.strip()[:1]


def is_frozen(device: Device, pid: int) -> bool:
    """Return whether a process is frozen by its control group, of either version."""
    for line in device.read(f"proc/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        folder = path.strip("/")
        if ".." in PurePosixPath(folder).parts:
            continue  # the group is outside this process's view
        if number == "0" and not controllers:
            events = device.read(str(CGROUPS / folder / "cgroup.events"))
            if "frozen 1" in events.splitlines():
                return True
        elif "freezer" in controllers.split(","):
            state = device.read(str(CGROUPS / "freezer" / folder / "freezer.state"))
            if state.strip() == "FROZEN":
                return True
    return False
