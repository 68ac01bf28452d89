"""Keeps all loaded models within the memory budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pocketserve.engine.lifecycle import memory
from pocketserve.engine.lifecycle.state import (
    VersionKey,
    VersionTable,
    bounded,
    close_all,
)
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.handle import ModelHandle

MAKES_ROOM = "it makes room"
"""Why a version is unloaded, as the log has it."""


class Budget:
    """Makes room for one version by unloading others.

    Args:
        setting: bytes that all loaded versions may use; 0 takes half of the available
            memory, now and at each load, if that is less: other apps need memory, too,
            and Android kills the largest process.
        available: returns the bytes of available memory.
    """

    def __init__(
        self,
        table: VersionTable,
        setting: int,
        available: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.size = setting or available() // 2
        self._available = None if setting else available
        self._table = table
        self._clock = clock

    def now(self) -> int:
        """Return the bytes that all loaded versions may use now.

        At most half of the rest is used on top.
        """
        if self._available is None:
            return self.size
        return min(self.size, self.used() + self._available() // 2)

    def used(self) -> int:
        """Return the estimated bytes of all loaded versions."""
        with self._table.lock:
            return sum(resident.size for resident in self._table.residents())

    def make_room(
        self,
        key: VersionKey,
        required: int,
        deadline: float,
        former: VersionKey | None = None,
    ) -> None:
        """Evict versions for a load, and reserve its bytes.

        A replaced version (``former``) does not count: both are in memory for a moment.
        If only other loads in progress prevent it, wait for their end: their versions can
        be evicted then.

        Raises:
            ApiError: MEMORY_BUDGET.
        """
        changed = self._table.changed
        with changed:
            while (victims := self._choose(key, required, former)) is None:
                alone = memory.choose_evictions(
                    self._other_residents(key, former), required, self.now()
                )
                left = deadline - self._clock()
                if alone is None or left <= 0 or not changed.wait(bounded(left)):
                    raise self._no_room(key, required)
            self._table.by_key[key].reserved = required
            closing = [self._table.evict(other, MAKES_ROOM) for other in victims]
        close_all(*closing)

    def has_room_for_copy(self, key: VersionKey) -> bool:
        """Return whether a second copy fits without evictions.

        Requires the lock.
        """
        running = self._table.by_key[key].running
        return (
            running is not None
            and self._choose(key, 2 * running.model.memory_bytes) == []
        )

    def evict_beside(
        self, key: VersionKey, former: VersionKey | None = None
    ) -> list[ModelHandle | None]:
        """Evict others for a model that is larger than its file.

        Requires the lock; returns the handles to close.
        """
        running = self._table.by_key[key].running
        size = running.model.memory_bytes if running is not None else 0
        victims = self._choose(key, size, former) or ()
        return [self._table.evict(other, MAKES_ROOM) for other in victims]

    def _choose(
        self, key: VersionKey, required: int, former: VersionKey | None = None
    ) -> list[object] | None:
        for other, record in self._table.by_key.items():
            if other != key:
                required += record.reserved
        residents = self._other_residents(key, former)
        return memory.choose_evictions(residents, required, self.now())

    def _other_residents(
        self, key: VersionKey, former: VersionKey | None = None
    ) -> list[memory.Resident]:
        residents = self._table.residents()
        return [each for each in residents if each.key not in (key, former)]

    def _no_room(self, key: VersionKey, required: int) -> ApiError:
        used = sum(resident.size for resident in self._other_residents(key))
        text = (
            f"failed to load {key[0]!r}: it needs about {required} "
            f"bytes and {used} are in use, but the memory budget"
        )
        text += f" is {self.now()}; wait, unload a model or raise --memory-budget"
        return ApiError(ErrorCode.MEMORY_BUDGET, text, retry_after_s=1.0)
