"""Read the run files of servers, which tell whose a port is.

A server locks its file for as long as it has its ports; the lock ends with the process. So a locked file that nobody
but this user can have written proves that its ports belong to a server of this user. A process id would prove nothing:
it may belong to another process later.
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
MAX_FILE_BYTES: Final = 32_768  # a path may have 4,096 bytes, each written with six
MAX_FILES: Final = 64
LATEST: Final = (
    253_402_300_799.0  # the end of the year 9999, the last that Python can format
)
HOSTS_OF_LOOPBACK: Final = (
    LOOPBACK,
    "0.0.0.0",
)  # addresses whose listener has the port on 127.0.0.1


class Run(NamedTuple):
    """A run of a server."""

    pid: int
    started: float  # seconds since 1970
    suspended: float | None = (
        None  # seconds that the device had slept between its start and the run's, if known
    )
    boot: str = ""  # identifies the device's start; empty if unknown
    ports: tuple[int, ...] = ()
    http: str = ""  # host and port, such as ``127.0.0.1:8470``
    models_dir: str = ""  # the folder or model that is served


def runs(state_dir: Path) -> Iterator[tuple[Path, Run, bool]]:
    """Yield every run with its file, and whether a living server has locked it; none from an unreadable folder."""
    with contextlib.suppress(OSError):
        for file in sorted((state_dir / FOLDER).glob("[0-9]*.json"))[:MAX_FILES]:
            if (run := read_run(file)) is not None:
                yield file, *run


def http_server(state_dir: Path, port: int) -> Run | None:
    """Return the running server of this user that has the HTTP port on 127.0.0.1.

    The same answer before and after connecting proves that the server had the port in between.
    """
    addresses = [f"{host}:{port}" for host in HOSTS_OF_LOOPBACK]
    return next(
        (run for _, run, locked in runs(state_dir) if locked and run.http in addresses),
        None,
    )


def read_run(path: Path) -> tuple[Run, bool] | None:
    """Return a file's run, and whether a server has locked it; None for none, or where others could have written it."""
    try:
        # Neither a link nor a FIFO that nobody writes to may lead away or hold up.
        descriptor = os.open(
            path,
            os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0),
        )
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o022
        ):
            return None
        return _run_of(json.loads(os.read(descriptor, MAX_FILE_BYTES))), _is_locked(
            descriptor
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    finally:
        os.close(descriptor)


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
        str(document.get("models_dir", "")),
    )


def _is_locked(descriptor: int) -> bool:
    import fcntl  # late: not on every system that the client runs on

    try:
        # Shared: two readers must not take each other for the server.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
