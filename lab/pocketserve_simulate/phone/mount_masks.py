"""Hide paths of a desktop that Termux does not have, if possible.

They are ``/tmp``, and a readable ``/proc/stat``.
"""

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
    """Return the start of a command line, which runs the rest on the phone.

    See ``launch.py``.
    """
    specification = {
        "parent": os.getpid(),
        "cores": list(cores),
        "hide": covers,
        "ready": ready,
    }
    return [sys.executable, "-I", "-S", str(LAUNCH), json.dumps(specification)]


def find_covers(folder: Path, absent: Iterable[Path] = ABSENT) -> dict[str, str]:
    """Return the paths that can be hidden, and an empty cover for each.

    A path stays visible if it contains something that the phone needs, or if the system
    does not allow hiding it.
    """
    required = _required_paths(folder)
    covers = {}
    for path in absent:
        if not path.exists():
            continue
        resolved = path.resolve()
        if not any(each.is_relative_to(resolved) for each in required):
            covers[str(path)] = str(_make_cover(folder, path))
    return _probe(covers)


def _required_paths(folder: Path) -> list[Path]:
    paths = [folder, Path.cwd(), Path(sys.prefix), Path(sys.base_prefix)]
    paths += map(Path, filter(None, sys.path))
    return [path.resolve() for path in paths]


def _make_cover(folder: Path, path: Path) -> Path:
    """Make an unreadable folder or file; root sees it as empty."""
    if path.is_dir():
        cover = folder / "no-folder"
        cover.mkdir(mode=0o500, exist_ok=True)
    else:
        cover = folder / "no-file"
        cover.touch(mode=0o000)
    return cover


def _probe(covers: dict[str, str]) -> dict[str, str]:
    """Return the covers that the system allows."""
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
