"""Decides who may write what the server trusts: files of models, and the state folder, which decides about trust."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
import sys
from pathlib import Path

log = logging.getLogger(__name__)

_ANDROID_SYSTEM = 1000  # Android's own user of that number owns the folders above those of apps, such as /data


def foreign_writer(*paths: Path) -> str | None:
    """Say who else could have written one of these files, or have put another one in its place; None for nobody.

    Each folder up to the root is checked. The user of this process and root may write; so may the group whose only
    member is the owner. A sticky folder such as /tmp lets nobody replace what is another user's.
    """
    real = [Path(os.path.realpath(path)) for path in paths]
    checked = dict.fromkeys(item for path in real for item in (path, *path.parents))
    return next(
        (fault for path in checked if (fault := other_writer(path)) is not None), None
    )


def other_writer(path: Path) -> str | None:
    """Say who else could have written one file or folder, without those above it; None for nobody."""
    try:
        status = path.stat()
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if status.st_uid not in (
        os.geteuid(),
        0,
        *((_ANDROID_SYSTEM,) if sys.platform == "android" else ()),
    ):
        return (
            f"{path} belongs to another user; copy the model into a folder of your own"
        )
    # Of a file the sticky bit means nothing.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"{path} can be written by every user; chmod go-w it"
    if status.st_mode & stat.S_IWGRP:
        name, is_private = _group(status.st_gid, status.st_uid)
        return (
            None
            if is_private
            else f"{path} can be written by the group {name}; chmod g-w it"
        )
    return None


@functools.cache
def _group(number: int, user: int) -> tuple[str, bool]:
    """Return a group's name, and whether it is the one that the system made for a user, with no other member."""
    try:
        import grp
        import pwd

        group, owner = grp.getgrgid(number), pwd.getpwuid(user)
    except (ImportError, KeyError):
        return str(number), number == user
    is_own = owner.pw_gid == number and group.gr_name == owner.pw_name
    return group.gr_name, is_own and not set(group.gr_mem) - {owner.pw_name}


class StateFolderError(Exception):
    """A state folder that cannot be used; the text is one sentence that says why and what to do."""


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, all of mode 0700; ``Path.mkdir(parents=True)`` leaves parents open."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def secure(folder: Path) -> None:
    """Take away other users' right to write into the state folder, or raise StateFolderError.

    One that does not exist is made private later.
    """
    if not os.path.isdir(folder):  # a server without one runs, and keeps nothing
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
    if (
        folder.stat().st_mode & others_write
    ):  # Android's shared storage keeps its own modes
        raise StateFolderError(
            f"others can write to the state folder {folder}, and so say which files are trusted; "
            "name a folder of your own, not on shared storage, with --state-dir"
        )
    log.warning(
        "others could write to the state folder %s; now its owner alone can", folder
    )
