"""Check files that should contain a server's token."""

from __future__ import annotations

import os
from pathlib import Path

from pocketserve_wire.files.plain_file import open_plain

MAX_TOKEN_FILE = 1024  # bytes; the server has the same limit


def token_file_fault(path: Path) -> str | None:
    """Return why a file has no token; None if it may have one."""
    try:
        with open_plain(path) as file:
            text = file.read(MAX_TOKEN_FILE + 1).strip()
    except OSError as error:
        return f"the token file {path} cannot be read: {error.strerror}"
    if len(text) > MAX_TOKEN_FILE or len(text.split()) != 1 or not text.isascii():
        return (
            f"{path} contains no token: it is another file (`pocketserve "
            f"token --path` prints the name of the right one)"
        )
    return None


def token_variable_fault() -> str | None:
    """Return the fault of the environment's token file, or None.

    A token in the environment takes precedence over the file.
    """
    path = os.environ.get("POCKETSERVE_TOKEN_FILE")
    if not path or os.environ.get("POCKETSERVE_TOKEN"):
        return None
    fault = token_file_fault(Path(path))
    if fault is None:
        return None
    return f"{fault}; POCKETSERVE_TOKEN_FILE names it"
