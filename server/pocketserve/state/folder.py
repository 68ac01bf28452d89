"""The state folder decides which files are trusted: nobody else may write to it."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class StateFolderError(Exception):
    """A state folder that cannot be used; the text is one sentence that says why and what to do."""


def secure(folder: Path) -> None:
    """Take away other users' right to write into the state folder. One that is not there yet is made private later.

    Raises:
        StateFolderError: it is somebody else's, or stays open to others.
    """
    status = _status(folder)
    if status is None:
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise StateFolderError(
            f"the state folder {folder} belongs to another user, who could say which files are trusted; "
            "name one of your own with --state-dir"
        )
    if not status.st_mode & _OTHERS_WRITE:
        return
    with contextlib.suppress(OSError):
        folder.chmod(stat.S_IMODE(status.st_mode) & 0o700)
    now = _status(folder)
    if now is not None and now.st_mode & _OTHERS_WRITE:  # Android's shared storage keeps its own modes
        raise StateFolderError(
            f"others can write to the state folder {folder}, and so say which files are trusted; "
            "name a folder of your own, not on shared storage, with --state-dir"
        )
    log.warning("others could write to the state folder %s; now its owner alone can", folder)


def _status(folder: Path) -> os.stat_result | None:
    """None for what is no folder: a server without one serves on, and keeps nothing."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status if stat.S_ISDIR(status.st_mode) else None
