"""A counting semaphore that never blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


class Semaphore:
    """Slots that are acquired without waiting or locking.

    A list's own methods are atomic, and calling them directly costs no Python frame.

    Attributes:
        maximum: number of slots.
        acquire: acquires a slot; raises IndexError if none is free.
        release: releases a slot.
    """

    __slots__ = ("_free", "acquire", "maximum", "release")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._free: list[None] = [None] * maximum
        self.acquire: Callable[[], None] = self._free.pop
        self.release: Callable[[], None] = partial(self._free.append, None)

    @property
    def unused(self) -> bool:
        """Return whether all slots are free."""
        return len(self._free) == self.maximum
