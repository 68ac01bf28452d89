"""A number of slots, for counting what may be under way at a time."""

from __future__ import annotations


class Semaphore:
    """Slots that are acquired without waiting, and without a lock: a list's own methods are atomic.

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

    def acquire(self) -> bool:
        """Acquire a slot, if one is free; return whether it was."""
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def release(self) -> None:
        """Release a slot."""
        self._free.append(None)
