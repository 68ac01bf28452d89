"""Start the processes of engines, each in a private folder of its own."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pocketserve.child.process import Child, Streams
from pocketserve.runtimes.base import TRIAL_VARIABLE
from pocketserve.state.folder_lock import WorkFolder, sweep_shared

FOLDER_PREFIX: Final = "pocketserve-llm-"
DROPPED: Final = ("LLAMA_", "POCKETSERVE_TOKEN", "HF_TOKEN", "PYTHONSTARTUP")
"""Starts of variables that an engine must not see: each of its flags has one."""


def make_work_folder() -> WorkFolder:
    """Return a new private folder for one process."""
    _sweep()
    return WorkFolder(Path(tempfile.gettempdir()), FOLDER_PREFIX)


def start_engine(command: Sequence[str], streams: Streams, folder: Path) -> Child:
    """Start a process in its folder.

    Raises:
        OSError: it can't be started.
    """
    start = _starter.submit(
        Child,
        command,
        streams,
        environment=_environment(),
        folder=folder,
        # A trial ends with all processes of its session; elsewhere Ctrl-C in the
        # terminal must not end an answer in progress.
        own_session=TRIAL_VARIABLE not in os.environ,
    )
    return start.result()


@functools.cache
def _sweep() -> None:
    """Remove folders of servers that were killed, with the first engine."""
    sweep_shared(Path(tempfile.gettempdir()), FOLDER_PREFIX)


def _environment() -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(DROPPED)
    }
    # Relative entries of the path would mean something else in the child's folder.
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    # On an abort, llama.cpp starts a debugger if there is one, and waits for it.
    variables = {"PYTHONPATH": path, "GGML_NO_BACKTRACE": "1"}
    # Libraries of the Hugging Face hub must neither ask it nor write to its cache.
    return environment | variables | {"HF_HUB_OFFLINE": "1", "HF_HOME": "hub"}


_starter = ThreadPoolExecutor(1, "pocketserve-engines")
"""Its thread lives as long as this process: the system ends a process that is bound to
its parent when the thread that started it ends."""
