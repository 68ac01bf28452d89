"""Other processes: parents, memory use and termination."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name.

    State, parent, group, session and more, see proc(5).

    Raises:
        OSError: there is no such process any more.
    """
    # The name, in brackets, may hold anything.
    return (
        Path(f"/proc/{pid}/stat")
        .read_text(encoding="utf-8", errors="replace")
        .rpartition(")")[2]
        .split()
    )


def descendants_of(pid: int) -> list[int]:
    """Return the direct and indirect children of a process."""
    children: dict[int, list[int]] = defaultdict(list)
    for other in all_processes():
        try:
            children[int(stat_fields(other)[1])].append(other)
        except (OSError, ValueError, IndexError):
            continue
    processes = list(children[pid])
    for process in processes:
        processes += children[process]
    return processes


def all_processes() -> list[int]:
    """Return the ids of all visible processes; none without ``/proc``."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


END_TIMEOUT_S = 10.0
"""Time for a killed process to end."""


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a session leader and all processes of its session."""
    import subprocess  # late: a server starts without it

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    # A process that the kernel holds up ends later.
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)


def bind_to(parent: int, *, adopt: bool = False) -> bool:
    """End this process with its parent thread.

    Return False if the parent has ended already.

    Where the system knows no such thing (it is Linux's, and so Android's), nothing happens.

    Args:
        adopt: become the parent of what its children leave behind, so that it is still among its descendants.
    """
    import ctypes  # late: a server starts without it

    prctl = (
        getattr(ctypes.CDLL(None), "prctl", None)
        if sys.platform in ("linux", "android")
        else None
    )
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if adopt:
            prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return os.getppid() == parent


def signal_name(exit_code: int) -> str:
    """Return the name of the signal in a negative exit code.

    A number if it has no name.
    """
    return next(
        (entry.name for entry in signal.Signals if entry == -exit_code),
        f"signal {-exit_code}",
    )
