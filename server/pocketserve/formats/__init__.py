"""Bounded readers of file formats that several parts of the server share, and what the readers have in common."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DamagedFileError(ValueError):
    """A file that cannot be read: damaged, hostile, or beyond a limit."""


class BoundedReader:
    """Bytes of a file, and a budget that bounds the work that a small file can ask for."""

    def __init__(self, data: bytes | mmap.mmap, budget: int) -> None:
        self.data = data
        self._budget = budget

    def pay(self, units: int) -> None:
        """Take from the budget; raise ``DamagedFileError`` if it is spent."""
        self._budget -= units
        if self._budget < 0:
            raise DamagedFileError("the description is too large")


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file to which nobody writes meanwhile; raise ``DamagedFileError`` if it is empty or cannot be read."""
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
