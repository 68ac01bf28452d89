"""Sample inputs of a model: files in the folder ``samples`` beside its manifest."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

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
    with _open_folder(entry) as folder:
        return [] if folder is None else _names_in(folder)


def read_sample(entry: ModelEntry, name: str) -> bytes | None:
    """Return the content of a listed sample; None if there is none of that name."""
    with _open_folder(entry) as folder:
        if folder is None or name not in _names_in(folder):
            return None
        # Neither a link nor a pipe that would block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=folder)
            with open(descriptor, "rb") as file:
                return _read_whole(file)
        except OSError:  # it was removed or replaced just now
            return None


@contextlib.contextmanager
def _open_folder(entry: ModelEntry) -> Iterator[int | None]:
    """Open a model's folder of samples; None if it has none, or only a link.

    A link may lead to private files. Each further step is relative to the opened
    folder, so that no link can take its place in between.
    """
    if entry.folder.name != entry.name:  # a bare file, in the folder of all models
        yield None
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(entry.folder / FOLDER, flags)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names_in(folder: int) -> list[str]:
    try:
        with os.scandir(folder) as files:
            names = [file.name for file in files if _is_sample(file)]
    except OSError:
        return []
    return sorted(names)[:MAX_SAMPLES]


def _is_sample(file: os.DirEntry[str]) -> bool:
    if Path(file.name).suffix not in CONTENT_TYPES or not _NAME.fullmatch(file.name):
        return False
    try:
        is_file = file.is_file(follow_symlinks=False)
        return is_file and file.stat(follow_symlinks=False).st_size <= MAX_BYTES
    except OSError:
        return False


def _read_whole(file: BinaryIO) -> bytes | None:
    """Return a file's content; None if it is no plain file, or has grown too large."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return None
    content = file.read(MAX_BYTES + 1)
    return content if len(content) <= MAX_BYTES else None
