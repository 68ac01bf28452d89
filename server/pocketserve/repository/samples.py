"""Sample inputs of a model: files in the folder ``samples`` beside its manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pocketserve.repository.scan import ModelEntry

FOLDER: Final = "samples"
MAX_SAMPLES: Final = 12
MAX_BYTES: Final = 4 << 20
CONTENT_TYPES: Final[Mapping[str, str]] = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".wav": "audio/wav",
    ".txt": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
}
_NAME: Final = re.compile(r"\w[\w .-]{0,99}")


def sample_names(entry: ModelEntry) -> list[str]:
    """Return the names of a model's sample inputs, at most twelve.

    Links, large files and files of other types are left out.
    """
    if entry.folder.name != entry.name:  # a bare file, in the folder of all models
        return []
    if (entry.folder / FOLDER).is_symlink():  # it may lead to private files
        return []
    try:
        files = list(os.scandir(entry.folder / FOLDER))
    except OSError:
        return []
    names = [file.name for file in files if _is_sample(file)]
    return sorted(names)[:MAX_SAMPLES]


def _is_sample(file: os.DirEntry[str]) -> bool:
    if Path(file.name).suffix not in CONTENT_TYPES or not _NAME.fullmatch(file.name):
        return False
    try:
        is_file = file.is_file(follow_symlinks=False)
        return is_file and file.stat(follow_symlinks=False).st_size <= MAX_BYTES
    except OSError:
        return False


def read_sample(entry: ModelEntry, name: str) -> bytes | None:
    """Return the content of a listed sample; None if there is none of that name."""
    if name not in sample_names(entry):
        return None
    path = entry.folder / FOLDER / name
    try:
        with open(path, "rb", opener=_open_file) as file:
            return file.read(MAX_BYTES)
    except OSError:  # it was removed or replaced just now
        return None


def _open_file(path: str, flags: int) -> int:
    """Open a file, but neither a link nor a pipe that would block."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
