"""Import times of a process's modules, by ``-X importtime``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from benchmarks.samples import Imports

PROFILED: Mapping[str, str] = {"PYTHONPROFILEIMPORTTIME": "1"}
"""Makes Python write a line for each imported module to standard error."""

OURS = ("pocketserve", "pocketserve_wire")

_LINE = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", re.MULTILINE)


def self_times(log: str) -> dict[str, int]:
    """Return each module's own microseconds."""
    return {name: int(taken) for taken, name in _LINE.findall(log)}


def lowest(runs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the shortest time of each module in any run."""
    found: dict[str, int] = {}
    for run in runs:
        for name, taken in run.items():
            found[name] = min(taken, found.get(name, taken))
    return found


def compare(name: str, ours: Mapping[str, int], floor: Mapping[str, int]) -> Imports:
    """Compare the server's modules with those of a script."""
    own = {}
    for module, taken in ours.items():
        if module.partition(".")[0] in OURS:
            own[module] = taken
    return Imports(
        name,
        dict(ours),
        dict(floor),
        dict(sorted(own.items(), key=lambda item: -item[1])),
    )
