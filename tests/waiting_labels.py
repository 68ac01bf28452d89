"""Block label files on named pipes, so that a test controls a load's duration.

Servers refuse a pipe for the labels themselves, and labels other than the tried ones.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import TRIAL_VARIABLE
from pocketserve_wire.files import plain_file

_read_plain = plain_file.read_plain


def pipe_of(path: Path) -> Path:
    """Return the pipe that a load of these labels waits for."""
    return path.with_name(f"{path.name}.pipe")


def read(path: Path, limit: int) -> bytes:
    """Read the pipe if it exists, else call ``read_plain``; trials never wait."""
    pipe = pipe_of(path)
    if pipe.is_fifo() and TRIAL_VARIABLE not in os.environ:
        return pipe.read_bytes()
    return _read_plain(path, limit)


def make_pipe(path: Path) -> Path:
    """Make loads wait until a test writes the labels into the pipe."""
    os.mkfifo(pipe_of(path))
    return pipe_of(path)


def install(monkeypatch: Any) -> None:
    """Replace the reader of labels in this process and its children."""
    monkeypatch.setattr("pocketserve.tasks.model_facts.read_plain", read)
    paths = (Path(__file__).with_name("children"), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, map(str, paths))))
