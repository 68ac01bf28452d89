"""Label files that are named pipes are waited for, so that a test decides how long a load takes.

Servers refuse pipes. In their place a test has this read the labels, here and in the servers that it starts.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from pocketserve import plain_files
from pocketserve.runtimes.base import TRIAL_VARIABLE

DIGITS = "".join(f"{digit}\n" for digit in range(10)).encode()
_read_plain = plain_files.read_plain


def read(path: Path, limit: int) -> bytes:
    """As :func:`~pocketserve.plain_files.read_plain`; a pipe is read to its end, in a trial not at all."""
    if not stat.S_ISFIFO(path.stat().st_mode):
        return _read_plain(path, limit)
    if TRIAL_VARIABLE in os.environ:
        return DIGITS
    with path.open("rb") as pipe:
        return pipe.read(limit)


def install(monkeypatch: Any) -> None:
    """Have labels read so in this process and in those that it starts."""
    monkeypatch.setattr("pocketserve.tasks.labels.read_plain", read)
    paths = (Path(__file__).with_name("children"), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, map(str, paths))))
