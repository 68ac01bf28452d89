"""Read code once, verify its hash, and run those bytes.

A file that is replaced between the check and its use never runs, because nothing opens
it a second time.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import threading
from collections.abc import Set
from pathlib import Path

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.state.folder_lock import remove_tree
from pocketserve_wire.files.plain_file import open_plain

MAX_BYTES = 4 << 30  # of one file of code; exported programs contain their weights

_copying = threading.Lock()


def read_code(path: Path, trusted: Set[str], original: Path | None = None) -> bytes:
    """Read a file of code.

    Args:
        trusted: SHA-256 of trusted code, in lower-case hexadecimal digits.
        original: the owner's file if ``path`` is a copy of it.

    Raises:
        ModelLoadError: it is not trusted or cannot be read.
    """
    content = read_regular(path)
    if hashlib.sha256(content).hexdigest() not in trusted:
        raise ModelLoadError(
            not_trusted(original or path, f"{path.name} is code that is not trusted")
        )
    return content


def read_regular(path: Path) -> bytes:
    """Read a whole regular file, or raise ModelLoadError."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise ModelLoadError(
                    f"{path.name} is larger than {MAX_BYTES >> 30} GiB"
                )
            return file.read(size)
    except OSError as error:
        raise ModelLoadError(
            f"{path.name} cannot be read: {error.strerror or error}"
        ) from None


def private_copy(path: Path, trusted: Set[str]) -> Path:
    """Copy a trusted library to a private folder, once."""
    content = read_code(path, trusted)
    try:
        with _copying:
            target = _copies() / hashlib.sha256(content).hexdigest() / path.name
            if not target.exists():
                target.parent.mkdir(mode=0o700, exist_ok=True)
                # Renamed when complete: half of a library must not be run later.
                partial = target.with_name(f".{path.name}")
                partial.write_bytes(content)
                partial.replace(target)
    except OSError as error:
        raise ModelLoadError(
            f"{path.name} cannot be copied to be loaded: {error.strerror or error}"
        ) from None
    return target


def not_trusted(path: Path, reason: str) -> str:
    """Return a message with the command to trust a model.

    Args:
        reason: such as ``m.savedmodel has the operator ReadFile``.
    """
    import shlex  # late, because most models contain no code

    return (
        f"{reason}; `pocketserve trust {shlex.quote(str(path))}` shows what it may do, "
        "and asks for your consent"
    )


@functools.cache
def _copies() -> Path:
    import tempfile  # late, because few models need it

    folder = Path(tempfile.mkdtemp(prefix="pocketserve-code-"))
    atexit.register(remove_tree, folder)
    return folder
