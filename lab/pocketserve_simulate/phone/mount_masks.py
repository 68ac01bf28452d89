"""Paths that a desktop has and Termux has not, hidden where possible: ``/tmp``, and a ``/proc/stat`` to be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

LAUNCH = Path(__file__).with_name("launch.py")
ABSENT = (Path("/tmp"), Path("/proc/stat"))
PROBE_TIMEOUT_S = 20.0


def launcher(
    cores: Sequence[int], covers: dict[str, str], ready: int | None = None
) -> list[str]:
    """Return the start of a command line that runs the rest of it on the phone; see ``launch.py``."""
    specification = json.dumps(
        {"parent": os.getpid(), "cores": list(cores), "hide": covers, "ready": ready}
    )
    return [sys.executable, "-I", "-S", str(LAUNCH), specification]


def find_covers(folder: Path, absent: Iterable[Path] = ABSENT) -> dict[str, str]:
    """Return which paths can be hidden here, and the empty file or folder in ``folder`` that is laid over each.

    A path stays in sight if something that the phone needs lies in it, or if the system does not allow it.
    """
    required = [
        folder,
        Path.cwd(),
        Path(sys.prefix),
        Path(sys.base_prefix),
        *map(Path, filter(None, sys.path)),
    ]
    resolved = [path.resolve() for path in required]
    covers = {}
    for path in absent:
        if path.exists() and not any(
            each.is_relative_to(path.resolve()) for each in resolved
        ):
            cover = folder / ("no-folder" if path.is_dir() else "no-file")
            # The super-user reads the file all the same, as empty.
            cover.mkdir(mode=0o500, exist_ok=True) if path.is_dir() else cover.touch(
                mode=0o000
            )
            covers[str(path)] = str(cover)
    if not covers:
        return {}
    try:
        output = subprocess.check_output(
            launcher([0], covers),
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
        )
        return {path: covers[path] for path in json.loads(output)}
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
