"""One at a time: for processes that read a small state file, change it and write it back."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pocketserve.state.plain_files import make_private_folder

WAIT_S: Final = 2.0
"""The work under the lock takes milliseconds; a holder that takes longer is frozen."""

LOOK_S: Final = 0.01
_HELD: Final = (errno.EAGAIN, errno.EACCES)


@contextmanager
def locked(path: Path, wait_s: float = WAIT_S) -> Iterator[bool]:
    """Hold the lock of a state file while the block runs. The kernel gives it up with its process, however that ends.

    What is locked is its folder: the file itself is replaced by each change, and a lock of its own would stay behind.

    Args:
        path: the state file; its folder is made where it is missing.

    Yields:
        Whether the lock is held. It is not where another one held it all the time, or where there can be no folder or
        its file system has no locks: then a change may be lost, as without any lock.
    """
    try:
        make_private_folder(path.parent)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _hold(descriptor, time.monotonic() + wait_s)
    finally:
        os.close(descriptor)


def _hold(descriptor: int, ends: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in _HELD or time.monotonic() >= ends:
                return False
        time.sleep(LOOK_S)  # flock has no timeout, and a signal to interrupt it belongs to the main thread alone
