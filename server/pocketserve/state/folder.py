"""The state folder decides which files are trusted: nobody else may write to it."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)


class StateFolderError(Exception):
    """A state folder that cannot be used; the text is one sentence that says why and what to do."""


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, all of mode 0700; ``Path.mkdir(parents=True)`` leaves parents open.

    Raises:
        OSError: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def secure(folder: Path) -> None:
    """Take away other users' right to write into the state folder. One that does not exist is made private later.

    Raises:
        StateFolderError: it belongs to another user, or stays open to others.
    """
    if not folder.is_dir():  # a server without one runs, and keeps nothing
        return
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise StateFolderError(
            f"the state folder {folder} belongs to another user, who could say which files are trusted; "
            "name one of your own with --state-dir"
        )
    others_write = stat.S_IWGRP | stat.S_IWOTH
    if not status.st_mode & others_write:
        return
    with contextlib.suppress(OSError):
        folder.chmod(stat.S_IMODE(status.st_mode) & 0o700)
    if folder.stat().st_mode & others_write:  # Android's shared storage keeps its own modes
        raise StateFolderError(
            f"others can write to the state folder {folder}, and so say which files are trusted; "
            "name a folder of your own, not on shared storage, with --state-dir"
        )
    log.warning("others could write to the state folder %s; now its owner alone can", folder)
