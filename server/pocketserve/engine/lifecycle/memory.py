"""Eviction policy, and returning memory to the system."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

LARGE_BYTES = 16 * 2**20
"""Size of files after whose load memory is trimmed, which takes a tenth of a second."""

# M_PURGE (Android 9) and M_PURGE_ALL (Android 14) in bionic's malloc.h.
_PURGE, _PURGE_ALL = -101, -104
# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_TRIM_BLOCK = 128 * 1024
"""Twice the block from which on glibc's ``free`` looks at the end of the thread's heap."""

_GLIBC_MOST_KEPT = 64 * 2**20
"""The most that glibc keeps by its own rules. It maps blocks from half this size."""


class Resident(NamedTuple):
    """A loaded version as the policy sees it.

    One in use is never chosen.
    """

    key: object
    size: int
    last_used: float  # when its last request ended, or it was loaded
    in_use: bool
    keep_alive: float  # idle seconds after which it may go; 0 keeps it


def choose_evictions(
    residents: Sequence[Resident], required: int, budget: int
) -> list[object] | None:
    """Return the least recently used versions to evict.

    None if evicting all does not suffice.
    """
    held_bytes = sum(resident.size for resident in residents)
    victims: list[object] = []
    for resident in sorted(residents, key=lambda r: r.last_used):
        if held_bytes + required <= budget:
            break
        if not resident.in_use:
            victims.append(resident.key)
            held_bytes -= resident.size
    return victims if held_bytes + required <= budget else None


def expired_keys(residents: Sequence[Resident], now: float) -> list[object]:
    """Return the versions that exceeded their keep-alive time."""
    keys = []
    for resident in residents:
        expiry = resident.last_used + resident.keep_alive
        if resident.keep_alive and not resident.in_use and now >= expiry:
            keys.append(resident.key)
    return keys


def next_expiry(residents: Sequence[Resident], now: float) -> float | None:
    """Return the earliest possible expiry, None if there is none.

    One that is in use cannot expire before it was idle for its whole keep-alive time from now on.
    """
    expiries = []
    for resident in residents:
        if resident.keep_alive:
            idle_since = now if resident.in_use else resident.last_used
            expiries.append(idle_since + resident.keep_alive)
    return min(expiries, default=None)


@contextmanager
def trimming(library: Any = None) -> Iterator[None]:
    """Return freed memory to the system during and after the block.

    glibc keeps up to 64 MiB at the end of each thread's heap, where its ``malloc_trim`` does not reach: those go as
    they are freed. Android's allocator has one call for all. Other C libraries have none.
    """
    trim_on_free(library)
    try:
        yield
    finally:
        gc.collect()
        trim(library)


def trim_on_free(library: Any = None) -> None:
    """Have the C library return freed memory until :func:`trim`."""
    _keep(library or _c_library(), 0)


def trim(library: Any = None) -> None:
    """Return memory that the C library has kept."""
    library = library or _c_library()
    if hasattr(library, "malloc_trim"):
        trim_on_free(library)
        # Freed at once, as malloc_trim keeps the end of a thread's heap.
        bytearray(_TRIM_BLOCK)
        library.malloc_trim(0)
    elif hasattr(library, "mallopt") and not library.mallopt(_PURGE_ALL, 0):
        # 0 on a system without this value.
        library.mallopt(_PURGE, 0)
    _keep(library, _GLIBC_MOST_KEPT)


def _c_library() -> Any:
    import ctypes  # kept out of start-up: it is only needed once something was loaded or unloaded

    return ctypes.CDLL(None)


def _keep(library: Any, maximum: int) -> None:
    """Set the bytes that glibc keeps at the end of a heap.

    The first call disables glibc's own rules.
    """
    if hasattr(library, "malloc_trim") and hasattr(library, "mallopt"):
        # Without this, every larger block would be a new mapping.
        library.mallopt(_MMAP_THRESHOLD, _GLIBC_MOST_KEPT // 2)
        library.mallopt(_TRIM_THRESHOLD, maximum)
