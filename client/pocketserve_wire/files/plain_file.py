"""Safe access to files that other programs may have created."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file for reading, without waiting for a pipe.

    Raises:
        OSError: it is a folder, a socket, a device or a pipe.
    """
    nonblocking = getattr(os, "O_NONBLOCK", 0)
    close_on_exec = getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, os.O_RDONLY | nonblocking | close_on_exec)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def lies_in(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder, after resolving all links."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def read_plain(path: Path, limit: int) -> bytes:
    """Read a regular file of up to ``limit`` bytes.

    Raises:
        OSError: EFBIG for a larger file, which is not read.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if size <= limit else b""
    if max(size, len(content)) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
    return content
