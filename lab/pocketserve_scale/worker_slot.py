"""Number the workers that share a state folder, with a folder for each."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from pocketserve.state.permissions import make_private_folder

FOLDER: Final = "workers"
MAX_WORKERS: Final = 256
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class NoSlotError(Exception):
    """A worker cannot get a folder.

    The text has the reason and the way out.
    """


class WorkerSlot:
    """The lowest free number from 0, held by a lock that ends with the process.

    A worker that replaces a killed one gets its number, and so its learned state.

    Args:
        state_dir: the server's state folder; no other server may use it at the same
            time.

    Raises:
        NoSlotError: the folder cannot be written, or all numbers are taken.
    """

    def __init__(self, state_dir: Path) -> None:
        self._parent = state_dir / FOLDER
        try:
            self.name, self._descriptor = self._take()
        except OSError as error:
            raise NoSlotError(
                f"{self._parent} cannot be used ({error.strerror}); name another folder "
                "with POCKETSERVE_STATE_DIR"
            ) from None
        self.folder = self._parent / self.name

    def _take(self) -> tuple[str, int]:
        for number in range(MAX_WORKERS):
            folder = self._parent / str(number)
            make_private_folder(folder)
            descriptor = os.open(folder, _FLAGS)
            if _lock(descriptor, fcntl.LOCK_EX):
                return folder.name, descriptor
            os.close(descriptor)
        raise NoSlotError(
            f"{MAX_WORKERS} workers use {self._parent}; stop some of them"
        )

    def is_alone(self) -> bool:
        """Return whether no other worker runs.

        It is checked each time: a master may start a worker at any time.
        """
        try:
            is_own = os.stat(self.folder).st_ino == os.fstat(self._descriptor).st_ino
            folders = [self._parent / name for name in os.listdir(self._parent)]
            folders.remove(self.folder)
            return is_own and not any(map(_is_locked, folders))
        # Another process removes folders, so it is unknown.
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Release the number; a second call does nothing.

        By then the descriptor may be another one's.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, _FLAGS)
    try:
        # A shared lock: two checks must not take each other for a worker.
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Return whether the lock was acquired."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
