"""Label files are waited for at a named pipe beside them, so that a test decides how long a load takes.

Servers refuse a pipe for the labels themselves, and labels that are not those that were tried.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import TRIAL_VARIABLE
from pocketserve_wire.files import plain_file

_read_plain = plain_file.read_plain


def pipe_of(path: Path) -> Path:
    """Where a load of these labels waits."""
    return path.with_name(f"{path.name}.pipe")


def read(path: Path, limit: int) -> bytes:
    """Return what comes out of the pipe, where there is one; else as ``read_plain``. No trial waits."""
    pipe = pipe_of(path)
    if pipe.is_fifo() and TRIAL_VARIABLE not in os.environ:
        return pipe.read_bytes()
    return _read_plain(path, limit)


def make_pipe(path: Path) -> Path:
    """Have loads wait for whoever writes the labels into the pipe."""
    os.mkfifo(pipe_of(path))
    return pipe_of(path)


def install(monkeypatch: Any) -> None:
    """Have labels read so in this process and in those that it starts."""
    monkeypatch.setattr("pocketserve.tasks.model_facts.read_plain", read)
    paths = (Path(__file__).with_name("children"), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, map(str, paths))))
