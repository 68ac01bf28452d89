"""A number of places, for counting what may be under way at a time."""

from __future__ import annotations


class Semaphore:
    """Places that are taken without waiting, and without a lock: a list's own methods are atomic.

    Attributes:
        maximum: how many there are.
    """

    __slots__ = ("_free", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._free: list[None] = [None] * maximum

    @property
    def unused(self) -> bool:
        """Return whether nobody holds one."""
        return len(self._free) == self.maximum

    def take(self) -> bool:
        """Take a place, if one is free."""
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def give(self) -> None:
        """Give a place back."""
        self._free.append(None)
