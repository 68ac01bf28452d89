"""Folder locks, which end with their process, and work folders."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pocketserve.state.permissions import make_private_folder

WAIT_S: Final = 2.0  # the locked work takes milliseconds; a slower holder is frozen

POLL_S: Final = 0.01
NEW_S: Final = 60.0
"""Seconds after which every owner has locked its folder."""

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PARTIAL_SUFFIX: Final = ".partial"
"""Suffix of unfinished files, after 16 random hexadecimal digits."""


@contextmanager
def locked(folder: Path, wait_s: float = WAIT_S) -> Iterator[bool]:
    """Lock a folder for exclusive changes of its files.

    The folder is locked because its files are replaced by each change, and a lock file
    would stay behind.

    Args:
        folder: created if it is missing.

    Yields:
        Whether the lock is held. False if another process held it for too long, or the
        folder cannot be created or locked.
    """
    try:
        make_private_folder(folder)
        descriptor = os.open(folder, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield acquire_lock(descriptor, time.monotonic() + wait_s)
    finally:
        os.close(descriptor)


def acquire_lock(descriptor: int, deadline: float) -> bool:
    """Lock an open folder before a deadline; return success."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            is_held = error.errno in (errno.EAGAIN, errno.EACCES)
            if not is_held or time.monotonic() >= deadline:
                return False
        # flock has no timeout, and only the main thread could use a signal for it.
        time.sleep(POLL_S)


class WorkFolder:
    """A private new folder, locked while its owner lives.

    Create it while the parent is :func:`locked`, or it may be swept before its lock.
    """

    def __init__(self, parent: Path, prefix: str = "") -> None:
        self.path = parent.resolve() / f"{prefix}{os.urandom(8).hex()}"
        self.path.mkdir(mode=0o700)
        self._descriptor = os.open(self.path, _FOLDER_FLAGS)
        # Without locks in the file system, sweeping does nothing either.
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder with its contents, as far as possible."""
        remove_tree(self.path)
        os.close(self._descriptor)


def sweep(parent: Path, prefix: str = "") -> None:
    """Remove this user's abandoned work folders and unfinished files."""
    if not os.path.isdir(parent):
        return
    with locked(parent) as alone, suppress(OSError):
        if not alone:
            return
        for entry in list(os.scandir(parent)):
            with suppress(OSError):
                _sweep_entry(entry, prefix)


def sweep_shared(parent: Path, prefix: str) -> None:
    """Remove this user's abandoned work folders in a folder of all users.

    That folder can't be locked, so folders that are new are kept: their owners may be
    about to lock them.
    """
    newest = time.time() - NEW_S
    with suppress(OSError):
        for entry in list(os.scandir(parent)):
            if not entry.name.startswith(prefix):
                continue
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < newest:
                    _sweep_entry(entry, prefix)


def _sweep_entry(entry: os.DirEntry[str], prefix: str) -> None:
    if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return
    if entry.is_dir(follow_symlinks=False) and entry.name.startswith(prefix):
        _remove_abandoned(entry.path)
    elif entry.is_file(follow_symlinks=False) and entry.name.endswith(PARTIAL_SUFFIX):
        os.unlink(entry.path)


def _remove_abandoned(folder: str) -> None:
    descriptor = os.open(folder, _FOLDER_FLAGS)
    try:
        # Raises OSError while its owner lives.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(folder)
    finally:
        os.close(descriptor)


def remove_tree(folder: str | Path) -> None:
    """Remove a folder of any depth, without recursion.

    Nested folders are moved up instead, since recursion has a limit.
    """
    with suppress(OSError):
        while True:
            entries = list(os.scandir(folder))
            if not entries:
                break
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _flatten(entry.path, folder)
                else:
                    os.unlink(entry.path)
        os.rmdir(folder)


def _flatten(inner: str, folder: str | Path) -> None:
    """Move a folder's entries up, and remove it."""
    os.chmod(inner, 0o700)
    for entry in list(os.scandir(inner)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)  # a folder must be writable to be moved
        os.rename(entry.path, os.path.join(folder, os.urandom(8).hex()))
    os.rmdir(inner)
