"""Bounded readers of file formats, and their common parts."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DamagedFileError(ValueError):
    """An unreadable file: damaged, hostile, or beyond a limit."""


class BoundedReader:
    """The bytes of a file, and a budget for the work of reading it."""

    def __init__(self, data: bytes | mmap.mmap, budget: int) -> None:
        self.data = data
        self._budget = budget

    def pay(self, units: int) -> None:
        """Subtract from the budget; raise ``DamagedFileError`` if it is exhausted."""
        self._budget -= units
        if self._budget < 0:
            raise DamagedFileError("the description is too large")


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file read-only; ``DamagedFileError`` if empty or unreadable."""
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise DamagedFileError(f"{path.name} is empty")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DamagedFileError(
            f"{path.name} cannot be read: {error.strerror or error}"
        ) from error
    with data:
        yield data
