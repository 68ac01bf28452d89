"""Long runs: their counts in ``make soak``, and a table of what they saw."""

from __future__ import annotations

import json
import os
from pathlib import Path

FULL = os.environ.get("POCKETSERVE_SOAK") == "full"
"""Whether this is ``make soak``, which takes hours; ``make test-all`` runs the same with smaller counts."""

TABLE = os.environ.get("POCKETSERVE_SOAK_TABLE")
"""A file that takes a row of JSON for each figure."""


def rounds(usual: int, full: int) -> int:
    """How often a long test repeats something."""
    return full if FULL else usual


def note(what: str, figure: str) -> None:
    """Put a row into the table of this run, if one is kept."""
    if TABLE:
        with Path(TABLE).open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, figure]) + "\n")
