"""Folders that one process works in, and that a later one removes if their owner was killed."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from pocketserve.state.file_lock import FOLDER_FLAGS, locked
from pocketserve.state.json_store import PARTIAL_SUFFIX


class WorkFolder:
    """A new folder of mode 0700, whose lock shows that its owner lives.

    Make it while the parent is :func:`~pocketserve.state.file_lock.locked`, or it may be swept before it has its lock.
    """

    def __init__(self, parent: Path, prefix: str = "") -> None:
        self.path = parent.resolve() / f"{prefix}{os.urandom(8).hex()}"
        self.path.mkdir(mode=0o700)
        self._descriptor = os.open(self.path, FOLDER_FLAGS)
        with suppress(OSError):  # a file system without locks: then nobody sweeps either
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder with all that is in it, as far as that can be."""
        remove_tree(self.path)
        os.close(self._descriptor)


def sweep(parent: Path, prefix: str = "") -> None:
    """Remove this user's work folders whose owner has ended, and half-written files."""
    if not parent.is_dir():
        return
    with locked(parent) as alone, suppress(OSError):
        for entry in [*os.scandir(parent)] if alone else ():
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                    continue
                if entry.is_dir(follow_symlinks=False) and entry.name.startswith(prefix):
                    _remove_ended(entry.path)
                elif entry.is_file(follow_symlinks=False) and entry.name.endswith(PARTIAL_SUFFIX):
                    os.unlink(entry.path)


def _remove_ended(folder: str) -> None:
    descriptor = os.open(folder, FOLDER_FLAGS)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError while its owner lives
        remove_tree(folder)
    finally:
        os.close(descriptor)


def remove_tree(folder: str | Path) -> None:
    """Remove a folder, however deep what lies in it: folders in folders are moved up, since recursion has a limit."""
    with suppress(OSError):
        while entries := [*os.scandir(folder)]:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                for inner in [*os.scandir(entry.path)]:
                    if inner.is_dir(follow_symlinks=False):
                        os.chmod(inner.path, 0o700)  # what may not be written to cannot be moved
                    os.rename(inner.path, os.path.join(folder, os.urandom(8).hex()))
                os.rmdir(entry.path)
        os.rmdir(folder)
