"""What a process imports, and how long each module takes by itself: Python's own ``-X importtime``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from benchmarks.samples import Imports

PROFILED: Mapping[str, str] = {"PYTHONPROFILEIMPORTTIME": "1"}
"""What makes a Python process write a line for each module to its standard error."""

OURS = ("pocketserve", "pocketserve_wire")

_LINE = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", re.MULTILINE)


def self_times(log: str) -> dict[str, int]:
    """Microseconds that each module took by itself, without what it imported."""
    return {name: int(taken) for taken, name in _LINE.findall(log)}


def lowest(runs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The shortest time of each module in any run: the rest is the machine's."""
    found: dict[str, int] = {}
    for run in runs:
        for name, taken in run.items():
            found[name] = min(taken, found.get(name, taken))
    return found


def compare(name: str, ours: Mapping[str, int], floor: Mapping[str, int]) -> Imports:
    """The server's modules beside those of a script that does the same work."""
    own = {
        module: taken
        for module, taken in ours.items()
        if module.partition(".")[0] in OURS
    }
    return Imports(
        name,
        dict(ours),
        dict(floor),
        dict(sorted(own.items(), key=lambda item: -item[1])),
    )
