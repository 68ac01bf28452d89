"""Read the run files of servers, which identify the owner of a port.

A server locks its file while it has its ports; the lock ends with the process. So a
locked file that only this user could have written proves that its ports belong to a
server of this user. A process id would prove nothing, because it may be reused.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pocketserve_wire.addresses import LOOPBACK

FOLDER: Final = "runs"
MAX_FILE_BYTES: Final = 32_768  # a path may have 4,096 bytes, with six for each in JSON
MAX_FILES: Final = 64
LATEST: Final = 253_402_300_799.0  # the end of 9999, the last that Python can format
HOSTS_OF_LOOPBACK: Final = (LOOPBACK, "0.0.0.0")
"""Hosts whose listener also has the port on 127.0.0.1."""


class Run(NamedTuple):
    """A run of a server."""

    pid: int
    started: float
    """Seconds since 1970."""
    suspended: float | None = None
    """Seconds of sleep between the starts of the device and of the run, if known."""
    boot: str = ""
    """Identifies the device's boot; empty if unknown."""
    ports: tuple[int, ...] = ()
    http: str = ""
    """Host and port, such as ``127.0.0.1:8470``."""
    models_dir: str = ""
    """The served folder or model."""


def runs(state_dir: Path) -> Iterator[tuple[Path, Run, bool]]:
    """Yield each run with its file, and whether a live server has locked it.

    An unreadable folder has no runs.
    """
    with contextlib.suppress(OSError):
        for file in sorted((state_dir / FOLDER).glob("[0-9]*.json"))[:MAX_FILES]:
            run = read_run(file)
            if run is not None:
                yield file, *run


def http_server(state_dir: Path, port: int) -> Run | None:
    """Return this user's running server on an HTTP port of 127.0.0.1.

    The same result before and after connecting proves that the server had the port in
    between.
    """
    addresses = [f"{host}:{port}" for host in HOSTS_OF_LOOPBACK]
    for _, run, locked in runs(state_dir):
        if locked and run.http in addresses:
            return run
    return None


def read_run(path: Path) -> tuple[Run, bool] | None:
    """Return a file's run, and whether a server has locked it.

    None means that the file is missing or invalid, or that others could write it.
    """
    no_follow = getattr(os, "O_NOFOLLOW", 0)
    no_wait = getattr(os, "O_NONBLOCK", 0)  # a pipe must not block
    try:
        descriptor = os.open(path, os.O_RDONLY | no_follow | no_wait)
    except OSError:
        return None
    try:
        if not _is_private(os.fstat(descriptor)):
            return None
        document = json.loads(os.read(descriptor, MAX_FILE_BYTES))
        return _run_of(document), _is_locked(descriptor)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _is_private(status: os.stat_result) -> bool:
    """Return whether this is a regular file that only this user can write."""
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    return not status.st_mode & 0o022


def _run_of(document: Mapping[str, Any]) -> Run:
    suspended = document["suspended"]
    started = float(document["started"])
    if not 0 <= started <= LATEST:
        raise ValueError("the start time is out of range")
    return Run(
        pid=int(document["pid"]),
        started=started,
        suspended=None if suspended is None else float(suspended),
        boot=str(document["boot"]),
        ports=tuple(map(int, document["ports"])),
        http=str(document.get("http", "")),
        models_dir=str(document.get("models_dir", "")),
    )


def _is_locked(descriptor: int) -> bool:
    import fcntl  # late, because some systems that run the client don't have it

    try:
        # A shared lock: two readers must not mistake each other for the server.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
