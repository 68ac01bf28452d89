"""Read the files with which running servers say that they run: what tells whose a port is.

A server holds a lock on its file for as long as it has its ports, and the system takes the lock away with the process.
So a file that is held, and that nobody but this user can have written, proves that its ports belong to a server of
this user. The lock, unlike the process id in the file, cannot belong to somebody else later.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = "runs"
MAX_FILE_BYTES: Final = 4096
MAX_FILES: Final = 64
LATEST: Final = 253_402_300_799.0
"""The end of the year 9999, the last that can be shown."""

HOSTS_OF_LOOPBACK: Final = ("127.0.0.1", "0.0.0.0")
"""Who listens there has the port on 127.0.0.1."""


class Run(NamedTuple):
    """One run of a server.

    Attributes:
        pid: its process.
        started: when, in seconds since 1970.
        suspended: seconds that the device had slept by then since it was started; None if it does not tell.
        boot: which start of the device it ran in; empty if it does not tell.
        ports: those it listens on.
        http: host and port of HTTP, such as ``127.0.0.1:8470``.
    """

    pid: int
    started: float
    suspended: float | None = None
    boot: str = ""
    ports: tuple[int, ...] = ()
    http: str = ""


def runs(state_dir: Path) -> Iterator[tuple[Path, Run, bool]]:
    """Yield every run with its file, and whether a living server holds it."""
    with contextlib.suppress(OSError):
        named = (path for path in (state_dir / FOLDER).iterdir() if path.suffix == ".json" and path.name[0].isdigit())
        for path in sorted(named)[:MAX_FILES]:
            found = _look(path)
            if found is not None:
                yield path, *found


def http_server(state_dir: Path, port: int) -> Run | None:
    """Return the running server of this user that has the HTTP port on 127.0.0.1.

    Who connects asks before and after: the same answer twice says that the server had the port all the time between.
    """
    addresses = [f"{host}:{port}" for host in HOSTS_OF_LOOPBACK]
    return next((run for _, run, held in runs(state_dir) if held and run.http in addresses), None)


def read_run(path: Path) -> Run | None:
    """Return what a file tells of a run; None where it tells of none, or others could have written it."""
    found = _look(path)
    return found[0] if found is not None else None


def _look(path: Path) -> tuple[Run, bool] | None:
    try:
        # Neither a link nor a FIFO that nobody writes to may lead away or hold up.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        if not _is_own(os.fstat(descriptor)):
            return None
        run = _run_of(json.loads(os.read(descriptor, MAX_FILE_BYTES)))
        return run, _is_held(descriptor)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _is_own(status: os.stat_result) -> bool:
    """Tell whether nobody but this user can have written a file."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _run_of(document: Mapping[str, Any]) -> Run:
    suspended = document["suspended"]
    started = float(document["started"])
    if not 0 <= started <= LATEST:
        raise ValueError("no date can be made of it")
    return Run(
        int(document["pid"]),
        started,
        None if suspended is None else float(suspended),
        str(document["boot"]),
        tuple(int(port) for port in document["ports"]),
        str(document.get("http", "")),
    )


def _is_held(descriptor: int) -> bool:
    """Tell whether a living server holds the file."""
    try:
        import fcntl  # late: where there is none, nobody holds anything
    except ImportError:
        return False
    try:
        # Shared: two that look at the same time must not take each other for the server.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
