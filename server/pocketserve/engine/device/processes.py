"""Processes that others have started."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path


def descendants_of(pid: int) -> list[int]:
    """Return the processes that one has started, and those that they have."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold anything; the state and the parent come after it.
            parent = int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children[parent].append(int(path.parent.name))
    processes = list(children[pid])
    for process in processes:
        processes += children[process]
    return processes
