"""Whether a file that holds code may be run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pocketserve.runtimes.base import ModelLoadError


def check_trusted(path: Path) -> None:
    """Refuse code that somebody else could have written.

    Raises:
        ModelLoadError: the file or its folder can be written by others, or belongs to another user.
    """
    if os.name != "posix":
        return
    for item in (path, path.parent):
        status = item.stat()
        # The sticky bit keeps others from replacing what lies in a folder; of a file it means nothing.
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & stat.S_IWOTH and not sticky:
            raise ModelLoadError(f"{item.name} can be written by every user, so its code is not run; chmod o-w it")
        if status.st_uid not in (os.geteuid(), 0):
            raise ModelLoadError(f"{item.name} belongs to another user, so its code is not run")
