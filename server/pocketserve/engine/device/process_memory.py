"""The memory that a process and its descendants use."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pocketserve.engine.device.processes import descendants_of

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
            lines = (
                Path(f"/proc/{process}/smaps_rollup")
                .read_text(encoding="ascii")
                .splitlines()
            )
        except OSError:
            if process == pid:
                return None
            continue  # it has ended meanwhile
        for line in lines:
            kind, _, size = line.partition(":")
            if kind in MEMORY_KEYS:
                sizes[MEMORY_KEYS[kind]] += 1024 * int(size.split()[0])
    return dict(sizes)
