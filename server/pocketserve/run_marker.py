"""Remembers that a server runs, so that one which was killed is noticed.

Android ends processes with signal 9, which no program can catch. A server that runs holds a locked file in the state
folder and removes it at its end; a file that nobody holds tells of a server that was killed. The lock, unlike the
process id in it, cannot belong to somebody else later.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pocketserve_wire.records import dataclass

FOLDER = "runs"
KILLED_FILE = "last-killed.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MAX_FILE_BYTES = 4096
MAX_FILES = 64
LATEST = 253_402_300_799.0
"""The end of the year 9999, the last that can be shown."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a server.

    Attributes:
        pid: its process.
        started: when, in seconds since 1970.
        suspended: seconds that the device had slept by then since it was started; None if it does not tell.
        boot: which start of the device it ran in; empty if it does not tell.
        ports: those it listens on.
    """

    pid: int
    started: float
    suspended: float | None = None
    boot: str = ""
    ports: tuple[int, ...] = ()


def suspended_seconds() -> float | None:
    """How long this device has slept since it was started: the one clock counts that time, the other does not."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    except (AttributeError, OSError):
        return None


def boot_id(path: Path = BOOT_ID) -> str:
    """What tells one start of the device from another."""
    try:
        return path.read_text()[:64].strip()
    except (OSError, ValueError):
        return ""


class RunMarker:
    """The mark of a server that runs. A state folder that cannot be written costs the mark, not the service."""

    def __init__(self, state_dir: Path, ports: tuple[int, ...]) -> None:
        self._path = state_dir / FOLDER / f"{os.getpid()}.json"
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._write(Run(os.getpid(), time.time(), suspended_seconds(), boot_id(), ports))

    def _write(self, run: Run) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        hidden = self._path.with_name(f".{self._path.name}")
        # Locked before it is there under its name, or another start might take it for a dead one.
        self._descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._descriptor, json.dumps(asdict(run)).encode())
        os.replace(hidden, self._path)

    def close(self) -> None:
        """The server ends as it was asked to."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._path.unlink(missing_ok=True)
            os.close(descriptor)


def running(state_dir: Path) -> list[Run]:
    """The servers that run now with this state folder."""
    return [run for path, run in _runs(state_dir) if _is_held(path)]


def killed(state_dir: Path) -> Run | None:
    """The newest server that was killed, noticed by a later one or not; None if there is none."""
    dead = [run for path, run in _runs(state_dir) if not _is_held(path)]
    noticed = _read(state_dir / KILLED_FILE)
    return max([*dead, *([noticed] if noticed is not None else [])], key=lambda run: run.started, default=None)


def notice_killed(state_dir: Path) -> Run | None:
    """The newest server that was killed since the last call; the doctor goes on to tell of it for a while."""
    newest: Run | None = None
    for path, run in _runs(state_dir):
        with contextlib.suppress(OSError):
            if not _is_held(path):
                os.replace(path, state_dir / KILLED_FILE)
                newest = run if newest is None or run.started > newest.started else newest
    return newest


def _runs(state_dir: Path) -> Iterator[tuple[Path, Run]]:
    with contextlib.suppress(OSError):
        for path in sorted((state_dir / FOLDER).glob("[0-9]*.json"))[:MAX_FILES]:
            run = _read(path)
            if run is not None:
                yield path, run


def _read(path: Path) -> Run | None:
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(MAX_FILE_BYTES))
        return _run_of(document)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


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
    )


def _is_held(path: Path) -> bool:
    """Whether a living server holds the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared: two that look at the same time must not take each other for the server.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
