"""Which models stay in memory: pure decisions over what is loaded, and the one call that gives memory back."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from pocketserve_wire.records import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """A loaded version as the policy sees it.

    Attributes:
        key: any identity the caller can map back.
        size: bytes it holds.
        last_used: clock time at which its last request ended (or it was loaded).
        in_use: whether a request is using it now; such a version is never chosen.
        keep_alive: idle seconds after which it may go; 0 keeps it.
    """

    key: object
    size: int
    last_used: float
    in_use: bool
    keep_alive: float


def choose_evictions(residents: Sequence[Resident], needed: int, budget: int) -> list[object] | None:
    """The least recently used versions whose removal makes room for ``needed`` bytes.

    Returns:
        Keys in the order of removal, empty when there is room already; None when no choice makes enough room.
    """
    held = sum(resident.size for resident in residents)
    chosen: list[object] = []
    for resident in sorted(residents, key=lambda r: r.last_used):
        if held + needed <= budget:
            break
        if not resident.in_use:
            chosen.append(resident.key)
            held -= resident.size
    return chosen if held + needed <= budget else None


def expired(residents: Sequence[Resident], now: float) -> list[object]:
    """The versions that have been idle for their whole keep-alive time."""
    return [r.key for r in residents if r.keep_alive and not r.in_use and now >= r.last_used + r.keep_alive]


def next_expiry(residents: Sequence[Resident], now: float) -> float | None:
    """The earliest clock time at which a version may expire; None when none ever does.

    One that is in use cannot expire before it was idle for its whole keep-alive time from now on.
    """
    return min(((now if r.in_use else r.last_used) + r.keep_alive for r in residents if r.keep_alive), default=None)


def return_free_memory() -> None:
    """Give memory that Python and the C library hold but do not use back to the system.

    glibc keeps freed blocks for later; ``malloc_trim`` returns them. Other C libraries (Android's bionic, musl,
    macOS) have no such call and return memory by themselves.
    """
    gc.collect()
    import ctypes  # kept out of start-up: it is only needed once something was unloaded

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
