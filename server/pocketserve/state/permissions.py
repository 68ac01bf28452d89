"""Check who can write the files that the server trusts."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
import sys
from pathlib import Path

log = logging.getLogger(__name__)

_ANDROID_SYSTEM = 1000  # Android's system user, which owns /data and other parents


def foreign_writer(*paths: Path) -> str | None:
    """Describe who else can write or replace files, or None.

    Each parent folder is checked. The user of this process and root may write, and so
    may a group whose only member is the owner. In a sticky folder such as /tmp nobody
    can replace the files of another user.
    """
    checked: dict[Path, None] = {}
    for path in paths:
        real = Path(os.path.realpath(path))
        checked.update(dict.fromkeys((real, *real.parents)))
    for path in checked:
        fault = other_writer(path)
        if fault is not None:
            return fault
    return None


def other_writer(path: Path) -> str | None:
    """Describe who else can write a path, ignoring its parents."""
    try:
        status = path.stat()
    except OSError as error:
        return f"{path} cannot be checked: {error.strerror}"
    trusted_users = {os.geteuid(), 0}
    if sys.platform == "android":
        trusted_users.add(_ANDROID_SYSTEM)
    if status.st_uid not in trusted_users:
        return (
            f"{path} belongs to another user; copy the model into a folder of your own"
        )
    # The sticky bit has no meaning for files.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"{path} can be written by every user; chmod go-w it"
    if status.st_mode & stat.S_IWGRP:
        name, is_private = _group(status.st_gid, status.st_uid)
        if not is_private:
            return f"{path} can be written by the group {name}; chmod g-w it"
    return None


@functools.cache
def _group(number: int, user: int) -> tuple[str, bool]:
    """Return a group's name, and whether it is private."""
    try:
        import grp
        import pwd

        group = grp.getgrgid(number)
        owner = pwd.getpwuid(user)
    except (ImportError, KeyError):
        return str(number), number == user
    is_own = owner.pw_gid == number and group.gr_name == owner.pw_name
    other_members = set(group.gr_mem) - {owner.pw_name}
    return group.gr_name, is_own and not other_members


class StateFolderError(Exception):
    """An unusable state folder; the message explains the fix."""


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700.

    ``Path.mkdir(parents=True)`` would create parents with the default mode.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def secure(folder: Path) -> None:
    """Remove other users' write permission from the state folder.

    A missing folder is created later, with a private mode.

    Raises:
        StateFolderError: other users could still write to it.
    """
    if not os.path.isdir(folder):  # without one the server runs, but stores nothing
        return
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise StateFolderError(
            f"the state folder {folder} belongs to another user, who could decide which "
            "files are trusted; name one of your own with --state-dir"
        )
    others_write = stat.S_IWGRP | stat.S_IWOTH
    if not status.st_mode & others_write:
        return
    with contextlib.suppress(OSError):
        folder.chmod(stat.S_IMODE(status.st_mode) & 0o700)
    # Android's shared storage has fixed modes.
    if folder.stat().st_mode & others_write:
        raise StateFolderError(
            f"others can write to the state folder {folder}, and so decide which files "
            "are trusted; name a folder of your own, not on shared storage, with "
            "--state-dir"
        )
    log.warning(
        "others could write to the state folder %s; now its owner alone can", folder
    )
