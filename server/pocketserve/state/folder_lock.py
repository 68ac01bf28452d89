"""Locks of folders, which the kernel releases when their process ends, and folders that one process works in."""

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

WAIT_S: Final = 2.0  # the work under the lock takes milliseconds; a holder that takes longer is frozen

POLL_S: Final = 0.01
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PARTIAL_SUFFIX: Final = ".partial"  # what the name of a half-written file ends with, after 16 random hexadecimal digits


@contextmanager
def locked(folder: Path, wait_s: float = WAIT_S) -> Iterator[bool]:
    """Hold a folder's lock while the block runs, so that one process at a time changes the files in it.

    The files themselves are replaced by each change; a lock file beside them would stay behind.

    Args:
        folder: it is made if it is missing.

    Yields:
        Whether the lock is held; else another process held it, there is no such folder, or it cannot be locked.
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
    """Return whether the lock of an open folder is held now; not before a deadline of the monotonic clock, or never."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if (
                error.errno not in (errno.EAGAIN, errno.EACCES)
                or time.monotonic() >= deadline
            ):
                return False
        time.sleep(
            POLL_S
        )  # flock has no timeout, and a signal to interrupt it belongs to the main thread alone


class WorkFolder:
    """A new folder of mode 0700, whose lock shows that its owner lives.

    Make it while the parent is :func:`locked`, or it may be swept before it has its lock.
    """

    def __init__(self, parent: Path, prefix: str = "") -> None:
        self.path = parent.resolve() / f"{prefix}{os.urandom(8).hex()}"
        self.path.mkdir(mode=0o700)
        self._descriptor = os.open(self.path, _FOLDER_FLAGS)
        with suppress(
            OSError
        ):  # a file system without locks: then nobody sweeps either
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder with all that is in it, as far as that can be."""
        remove_tree(self.path)
        os.close(self._descriptor)


def sweep(parent: Path, prefix: str = "") -> None:
    """Remove this user's work folders whose owner has ended, and half-written files."""
    if not os.path.isdir(parent):
        return
    with locked(parent) as alone, suppress(OSError):
        for entry in [*os.scandir(parent)] if alone else ():
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                    continue
                if entry.is_dir(follow_symlinks=False) and entry.name.startswith(
                    prefix
                ):
                    _remove_ended(entry.path)
                elif entry.is_file(follow_symlinks=False) and entry.name.endswith(
                    PARTIAL_SUFFIX
                ):
                    os.unlink(entry.path)


def _remove_ended(folder: str) -> None:
    descriptor = os.open(folder, _FOLDER_FLAGS)
    try:
        fcntl.flock(
            descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
        )  # raises OSError while its owner lives
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
                        os.chmod(
                            inner.path, 0o700
                        )  # what may not be written to cannot be moved
                    os.rename(inner.path, os.path.join(folder, os.urandom(8).hex()))
                os.rmdir(entry.path)
        os.rmdir(folder)
