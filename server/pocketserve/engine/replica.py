"""Identity of one worker process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Replica(NamedTuple):
    """A worker of several that serve the same folder."""

    name: str  # labels its statistics
    state_dir: Path  # its own state, such as verdicts; trust stays in the server's state folder
    is_alone: Callable[[], bool]  # whether every request reaches this worker, now
