"""Opening small files that somebody else may have put there."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file for reading. A named pipe is not waited for.

    Raises:
        OSError: it cannot be read, or is a folder, a pipe, a socket or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path, limit: int) -> bytes:
    """Read a regular file whole. Its size is checked first, so that a huge or sparse one costs nothing.

    Args:
        limit: bytes that it may have.

    Raises:
        OSError: as :func:`open_plain`; EFBIG for a larger file.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if size <= limit else b""
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
    return content
