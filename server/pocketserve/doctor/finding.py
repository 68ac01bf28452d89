"""Results of checks."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple


class Level(enum.StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """A fact about the device.

    Attributes:
        subject: the checked part, such as ``token``.
        fix: the command or step that fixes it; with level OK an optional improvement.
    """

    level: Level
    subject: str
    sentence: str
    fix: str = ""


Check = Callable[[], Iterable[Finding]]

ok: Final = partial(Finding, Level.OK)
warning: Final = partial(Finding, Level.WARNING)
problem: Final = partial(Finding, Level.PROBLEM)
