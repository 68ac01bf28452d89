"""Reading small files that somebody else may have put there: only regular ones, only as much as is expected."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from pocketserve_wire.plain_file import open_plain

__all__ = ["open_plain", "read_plain"]


def read_plain(path: Path, limit: int) -> bytes:
    """Read a regular file whole. Its size is looked at first, so that a huge or sparse one costs nothing.

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
