"""Tells files that a clone or a download left in a model's place, at which a framework would guess at damage."""

from __future__ import annotations

import re
from pathlib import Path

from .registry import first_bytes

_PAGE = rb"\s*<(?:!doctype\s+html|html|head|\?xml)[\s>]"


def failed_download(path: Path) -> str | None:
    """Return why a file is not what its name promises: a pointer of Git LFS, or the page that a link to it led to.

    Returns:
        A sentence that begins with the file's name; None for anything else, what cannot be read among it.
    """
    head = first_bytes(path, 64) or b""
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return f"{path.name} is only a pointer of Git LFS: run git lfs pull in the clone, or download the file itself"
    if b"<" in head and re.match(_PAGE, head, re.IGNORECASE):  # compiled for the first that may be one
        return f"{path.name} is a web page instead of the model: download the file itself"
    return None
