"""The token file: there, whole, and readable by its owner only."""

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
# All apps with the storage permission can read these folders, whatever a file's mode says.
SHARED_STORAGE = ("storage", "sdcard", "mnt/sdcard", "data/media")


def check_token(device: Device, config: Config) -> Iterator[Finding]:
    """Look at the file as the server would."""
    if not config.auth:
        return
    path = config.token_file
    try:
        if is_shared(device, path):
            sentence = f"the token file {path} lies in shared storage, where other apps can read it"
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
    """Return whether a path lies in Android's shared storage."""
    resolved = path.resolve()
    return any(
        resolved.is_relative_to((device.root / folder).resolve())
        for folder in SHARED_STORAGE
    )


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
    fix = (
        f"chmod 600 {path}"
        if mode & 0o077 or not mode & 0o400
        else f"rm {path} && pocketserve token"
    )
    return problem(SUBJECT, text.partition(";")[0], fix)
