"""Small files beside which somebody else may put others: read only as they are expected, and replaced whole."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from pocketserve_wire.files.plain_file import open_plain

__all__ = ["make_private_folder", "open_plain", "read_plain", "replace_json"]


def make_private_folder(folder: Path) -> None:
    """Make a folder that is not there yet, and those above it that are not, all of mode 0700 whatever the umask.

    ``Path.mkdir(parents=True)`` gives its mode to the last one only.

    Raises:
        OSError: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


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


def replace_json(path: Path, document: Any) -> None:
    """Replace a file of mode 0600 whole, by JSON.

    The folder may be one that others write to: nobody can have laid something where the name is not known before.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    hidden = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(hidden, path)
    except OSError:
        hidden.unlink(missing_ok=True)
        raise
