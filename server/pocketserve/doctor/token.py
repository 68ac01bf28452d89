"""Check that the token file is valid and private."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve.auth.guard import TokenFileError, read_token
from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem

if TYPE_CHECKING:
    from pocketserve.config import Config

SUBJECT = "token"
# All apps with the storage permission can read these folders, whatever the file's mode.
SHARED_STORAGE = ("storage", "sdcard", "mnt/sdcard", "data/media")


def check_token(device: Device, config: Config) -> Iterator[Finding]:
    """Check the file as the server does."""
    if not config.auth:
        return
    path = config.token_file
    try:
        if is_shared(device, path):
            sentence = (
                f"the token file {path} is in shared storage, where other apps can "
                "read it"
            )
            yield problem(
                SUBJECT,
                sentence,
                "unset POCKETSERVE_TOKEN_FILE, or put it under your home folder",
            )
        else:
            read_token(path)
            yield ok(SUBJECT, f"only its owner can read the token file {path}")
    except TokenFileError as error:
        yield _fault(path, str(error))


def is_shared(device: Device, path: Path) -> bool:
    """Return whether a path is in Android's shared storage."""
    resolved = path.resolve()
    for name in SHARED_STORAGE:
        folder = (device.root / name).resolve()
        if resolved.is_relative_to(folder):
            return True
    return False


def _fault(path: Path, text: str) -> Finding:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return ok(
            SUBJECT,
            "there is no token yet; the first start makes one",
            "pocketserve token",
        )
    except OSError:
        return problem(SUBJECT, text, f"look at the folder {path.parent}")
    if not stat.S_ISREG(mode):
        return problem(
            SUBJECT, f"the token file {path} is not a file", f"mv {path} {path}.old"
        )
    fix = f"rm {path} && pocketserve token"
    if mode & 0o077 or not mode & 0o400:
        fix = f"chmod 600 {path}"
    return problem(SUBJECT, text.partition(";")[0], fix)
