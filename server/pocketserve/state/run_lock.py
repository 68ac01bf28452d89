"""Remembers that a server runs, so that one which was killed is noticed.

Android ends processes with signal 9, which no program can catch. A server that runs holds a locked file in the state
folder and removes it at its end; an unlocked file shows that a server was killed, and a locked one shows clients whose
the ports in it are (``pocketserve_wire.files.run_file``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from pathlib import Path

from pocketserve.state.permissions import make_private_folder
from pocketserve_wire.files.run_file import FOLDER, Run, read_run, runs

KILLED_FILE = "last-killed.json"


def suspended_seconds() -> float | None:
    """Return how long this device has slept since it was started."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(
            time.CLOCK_MONOTONIC
        )
    except (AttributeError, OSError):
        return None


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return what distinguishes one start of the device from another; an empty text if it cannot be read."""
    try:
        return path.read_text()[:64].strip()
    except (OSError, ValueError):
        return ""


class RunLock:
    """The locked file of a server that runs. A state folder that cannot be written costs the file, not the service.

    Made once the server listens, and closed before it gives its ports up: clients send the token to the port over HTTP,
    at the host and port ``http``, while the file is locked. ``models_dir`` is what is served.
    """

    def __init__(
        self,
        state_dir: Path,
        ports: tuple[int, ...],
        http: str = "",
        models_dir: str = "",
    ) -> None:
        self._path = state_dir / FOLDER / f"{os.getpid()}.json"
        self._descriptor: int | None = None
        self._closing = threading.Lock()
        run = Run(
            os.getpid(),
            time.time(),
            suspended_seconds(),
            boot_id(),
            ports,
            http,
            models_dir,
        )
        partial = self._path.with_name(f".{self._path.name}")
        with contextlib.suppress(OSError):
            make_private_folder(self._path.parent)
            # Locked before it has its name, or another start might take its server for a dead one.
            self._descriptor = os.open(
                partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600
            )
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, json.dumps(run._asdict()).encode())
            os.replace(partial, self._path)

    def close(self) -> None:
        """Remove the file: the server ends as it was asked to. May be called again, from any thread."""
        with self._closing:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(descriptor)


def running_servers(state_dir: Path) -> list[Run]:
    """Return the servers that run now with this state folder."""
    return [run for _, run, locked in runs(state_dir) if locked]


def killed(state_dir: Path) -> Run | None:
    """Return the newest server that was killed, noticed by a later one or not."""
    dead = [run for _, run, locked in runs(state_dir) if not locked]
    if (noticed := read_run(state_dir / KILLED_FILE)) is not None:
        dead.append(noticed[0])
    return max(dead, key=lambda run: run.started, default=None)


def notice_killed(state_dir: Path) -> Run | None:
    """Return the newest server that was killed since the last call; :func:`killed` still returns it."""
    dead = []
    for path, run, locked in runs(state_dir):
        with contextlib.suppress(OSError):
            if not locked:
                os.replace(path, state_dir / KILLED_FILE)
                dead.append(run)
    return max(dead, key=lambda run: run.started, default=None)
