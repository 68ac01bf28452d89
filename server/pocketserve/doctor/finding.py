"""Results of checks."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple


class Level(enum.StrEnum):
    """Severity: a problem keeps something from working, a warning will surprise somebody."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """A fact about the device."""

    level: Level
    subject: str  # what was looked at, such as ``token``
    sentence: str  # the fact in plain words
    fix: str = (
        ""  # the command or step that mends it; with level OK, what could be added
    )


Check = Callable[[], Iterable[Finding]]

ok: Final = partial(Finding, Level.OK)
warning: Final = partial(Finding, Level.WARNING)
problem: Final = partial(Finding, Level.PROBLEM)
