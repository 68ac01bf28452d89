"""Find servers that were stopped by a signal or frozen by Android."""

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
    findings = []
    for run in servers:
        finding = _stopped_finding(device, run.pid)
        if finding is not None:
            findings.append(finding)
    yield from findings
    if servers and not findings:
        yield ok(SUBJECT, "no running server is stopped or frozen")


def _stopped_finding(device: Device, pid: int) -> Finding | None:
    """Return the problem of a server's process; None if the process can run."""
    if _state(device, pid) in STOPPED_STATES:
        return problem(
            SUBJECT,
            f"the server (process {pid}) is stopped and answers no requests",
            f"kill -CONT {pid}",
        )
    if is_frozen(device, pid):
        return problem(
            SUBJECT,
            f"the server (process {pid}) is frozen and answers no requests",
            "open Termux; and see docs/termux.md, 'It hangs until I open Termux'",
        )
    return None


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
            file = CGROUPS / folder / "cgroup.events"
            frozen = "frozen 1"
        elif "freezer" in controllers.split(","):
            file = CGROUPS / "freezer" / folder / "freezer.state"
            frozen = "FROZEN"
        else:
            continue
        if frozen in device.read(str(file)).splitlines():
            return True
    return False
