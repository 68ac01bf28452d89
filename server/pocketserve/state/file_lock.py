"""Locks of folders, which the kernel releases when the process that holds one ends, however that happens."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pocketserve.state.folder import make_private_folder

WAIT_S: Final = 2.0
"""The work under the lock takes milliseconds; a holder that takes longer is frozen."""

POLL_S: Final = 0.01
FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        descriptor = os.open(folder, FOLDER_FLAGS & ~os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _acquire(descriptor, time.monotonic() + wait_s)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() >= deadline:
                return False
        time.sleep(POLL_S)  # flock has no timeout, and a signal to interrupt it belongs to the main thread alone
