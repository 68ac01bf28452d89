"""Record that a server runs, to detect killed ones.

Android ends processes with SIGKILL, which no program can catch. A running server has a
locked file in the state folder and removes it when it stops. An unlocked file shows
that a server was killed; a locked one tells clients which ports belong to this user
(``pocketserve_wire.files.run_file``).
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
    """Return how long this device was suspended since its boot."""
    try:
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return since_boot - time.clock_gettime(time.CLOCK_MONOTONIC)
    except (AttributeError, OSError):
        return None


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return an identifier of this boot, or ""."""
    try:
        return path.read_text()[:64].strip()
    except (OSError, ValueError):
        return ""


class RunLock:
    """The locked file of a running server.

    The server runs without it if the state folder is not writable. Create it when the
    server listens, and close it before the ports are released: while the file is
    locked, clients send the token over HTTP to the address ``http``.
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
            pid=os.getpid(),
            started=time.time(),
            suspended=suspended_seconds(),
            boot=boot_id(),
            ports=ports,
            http=http,
            models_dir=models_dir,
        )
        partial = self._path.with_name(f".{self._path.name}")
        with contextlib.suppress(OSError):
            make_private_folder(self._path.parent)
            # Locked before it is renamed, or another server might see it unlocked.
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            self._descriptor = os.open(partial, flags, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, json.dumps(run._asdict()).encode())
            os.replace(partial, self._path)

    def close(self) -> None:
        """Remove the file on a clean stop. Idempotent and thread-safe."""
        with self._closing:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(descriptor)


def running_servers(state_dir: Path) -> list[Run]:
    """Return the running servers that use this state folder."""
    return [run for _, run, locked in runs(state_dir) if locked]


def killed(state_dir: Path) -> Run | None:
    """Return the latest killed server, reported or not."""
    dead = [run for _, run, locked in runs(state_dir) if not locked]
    reported = read_run(state_dir / KILLED_FILE)
    if reported is not None:
        dead.append(reported[0])
    return max(dead, key=lambda run: run.started, default=None)


def notice_killed(state_dir: Path) -> Run | None:
    """Return the latest newly killed server; report each once."""
    dead = []
    for path, run, locked in runs(state_dir):
        with contextlib.suppress(OSError):
            if not locked:
                os.replace(path, state_dir / KILLED_FILE)
                dead.append(run)
    return max(dead, key=lambda run: run.started, default=None)
