"""Who, beside the user of this process, could have written a file."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

_ANDROID_SYSTEM = 1000
"""Android's own user and group of that number own the folders above those of apps, such as /data."""


def foreign_writer(*paths: Path) -> str | None:
    """Say who else could have written one of these files, or have put another one in its place; None for nobody.

    Each folder up to the root is looked at. The user of this process and root may write; so may the group whose only
    member is the owner. A sticky folder such as /tmp lets nobody replace what is another user's.

    Returns:
        A clause such as ``/srv/models can be written by other users; chmod go-w it``.
    """
    return next((fault for path in _with_parents(paths) if (fault := other_writer(path)) is not None), None)


def other_writer(path: Path) -> str | None:
    """Say who else could have written one file or folder, without those above it; None for nobody."""
    try:
        return _fault(path)
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"


def _with_parents(paths: Iterable[Path]) -> Iterable[Path]:
    real = [Path(os.path.realpath(path)) for path in paths]
    return dict.fromkeys(item for path in real for item in (path, *path.parents))


def _fault(path: Path) -> str | None:
    if os.name != "posix":
        return None
    status = path.stat()
    if status.st_uid not in _owners():
        return f"{path} belongs to another user; copy the model into a folder of your own"
    # Of a file the sticky bit means nothing.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"{path} can be written by every user; chmod go-w it"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid, status.st_uid):
        return f"{path} can be written by the group {_group_name(status.st_gid)}; chmod g-w it"
    return None


def _owners() -> tuple[int, ...]:
    return (os.geteuid(), 0, _ANDROID_SYSTEM) if sys.platform == "android" else (os.geteuid(), 0)


@functools.cache
def _is_private_group(group: int, user: int) -> bool:
    """Return whether nobody but a user is in a group: the one that the system made for the user, under the same
    name.
    """
    try:
        import grp
        import pwd

        known, owner = grp.getgrgid(group), pwd.getpwuid(user)
    except (ImportError, KeyError):
        return group == user
    return owner.pw_gid == group and known.gr_name == owner.pw_name and not set(known.gr_mem) - {owner.pw_name}


def _group_name(group: int) -> str:
    try:
        import grp

        return grp.getgrgid(group).gr_name
    except (ImportError, KeyError):
        return str(group)
