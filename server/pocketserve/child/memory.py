"""The memory that a process and its descendants use."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from pocketserve.engine.device.processes import descendants_of, stat_fields

RESIDENT_FIELD = 21  # of stat_fields: pages
MEMORY_KEYS = {
    "Rss": "resident",
    "Pss": "proportional",
    "Private_Clean": "private",
    "Private_Dirty": "private",
    "Anonymous": "anonymous",
}


def memory_of(pid: int) -> dict[str, int] | None:
    """Return the bytes of a process and its descendants, by kind.

    ``proportional`` is the fair share of what is shared, ``anonymous`` the part of the
    resident memory that no file backs. Return None if the system hides the process.
    """
    sizes: Counter[str] = Counter()
    for process in (pid, *descendants_of(pid)):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            if process == pid:
                return None
            continue  # it has ended meanwhile
        for line in text.splitlines():
            kind, _, size = line.partition(":")
            if kind in MEMORY_KEYS:
                sizes[MEMORY_KEYS[kind]] += 1024 * int(size.split()[0])
    return dict(sizes)


def resident_bytes(pid: int, *, descendants: bool = True) -> int:
    """Return a process's resident memory, by default with its descendants.

    Processes that have ended, or that the system hides, count nothing.
    """
    processes = [pid]
    if descendants:
        processes += descendants_of(pid)
    pages = 0
    for process in processes:
        with suppress(OSError, ValueError, IndexError):
            pages += int(stat_fields(process)[RESIDENT_FIELD])
    return pages * os.sysconf("SC_PAGE_SIZE")
