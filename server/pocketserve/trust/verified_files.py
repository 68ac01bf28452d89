"""Reads code as it was hashed: once, compared with what the owner trusts, and run from those bytes.

A file that is replaced between the check and its use is never run: nothing opens it a second time.
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

MAX_BYTES = 4 << 30  # of one file of code; an exported program holds its weights

_copying = threading.Lock()


def read_code(path: Path, trusted: Set[str], original: Path | None = None) -> bytes:
    """Read a file of code; raise ModelLoadError if it is not trusted or cannot be read.

    Args:
        trusted: SHA-256 of what the owner trusts, in lower-case hexadecimal digits.
        original: the owner's file that this one is a copy of.
    """
    content = read_regular(path)
    if hashlib.sha256(content).hexdigest() not in trusted:
        raise ModelLoadError(
            not_trusted(original or path, f"{path.name} is code that is not trusted")
        )
    return content


def read_regular(path: Path) -> bytes:
    """Read a regular file whole; raise ModelLoadError if it is none, is too large, or cannot be read."""
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
    """Copy a trusted library, once, to where nobody else writes, for loaders that want a path."""
    content = read_code(path, trusted)
    try:
        with _copying:
            target = _copies() / hashlib.sha256(content).hexdigest() / path.name
            if not target.exists():
                target.parent.mkdir(mode=0o700, exist_ok=True)
                partial = target.with_name(
                    f".{path.name}"
                )  # where there is no room, half of it must not be run later
                partial.write_bytes(content)
                partial.replace(target)
    except OSError as error:
        raise ModelLoadError(
            f"{path.name} cannot be copied to be loaded: {error.strerror or error}"
        ) from None
    return target


def not_trusted(path: Path, reason: str) -> str:
    """Return a reason, such as ``m.savedmodel has the operator ReadFile``, with the way to consent to a model."""
    import shlex  # late: most models hold no code

    return f"{reason}; `pocketserve trust {shlex.quote(str(path))}` shows what it may do, and asks for your consent"


@functools.cache
def _copies() -> Path:
    import tempfile  # late: few models have one

    folder = Path(tempfile.mkdtemp(prefix="pocketserve-code-"))
    atexit.register(remove_tree, folder)
    return folder
