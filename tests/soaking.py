"""Set the counts of long tests, and record their figures."""

from __future__ import annotations

import json
import os
from pathlib import Path

FULL = os.environ.get("POCKETSERVE_SOAK") == "full"
"""Whether this is ``make soak``, which takes hours; ``make test-all`` has smaller
counts.
"""

TABLE = os.environ.get("POCKETSERVE_SOAK_TABLE")
"""A file that gets a row of JSON for each figure."""


def rounds(usual: int, full: int) -> int:
    """Return the repetitions of a long test."""
    if FULL:
        return full
    return usual


def note(what: str, figure: str) -> None:
    """Add a row to this run's table, if there is one."""
    if TABLE:
        with Path(TABLE).open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, figure]) + "\n")
