"""Tell by its header whether a GGUF file is one of several parts."""

from __future__ import annotations

from pathlib import Path

from pocketserve.formats import DamagedFileError
from pocketserve.formats.gguf_parts import later_parts, part_of


def is_split(path: Path) -> bool:
    """Return whether a file is one of several parts.

    Its header decides: a merged file may have kept the name of its first part. If it
    can't be read, its name decides.
    """
    if part_of(path.name) is None:
        return False
    count = _read_count(path)
    return count is None or count > 1


def parts_beside(path: Path) -> list[str]:
    """Return the names of a model's later parts.

    They are none for a whole model, and for a file that can't be read: its load tells
    why.
    """
    names = later_parts(path.name)
    if names and _read_count(path) in (None, 1):
        return []
    return names


def _read_count(path: Path) -> int | None:
    """Return the number of parts in a file's header, or None."""
    from pocketserve.formats.gguf import count_parts

    if not path.is_file():
        return None  # opening a pipe would wait for its writer
    try:
        return count_parts(path)
    except DamagedFileError:
        return None
