"""What a check of one subject gives."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from pocketserve_wire.records import dataclass


class Level(enum.StrEnum):
    """How bad it is: a problem keeps something from working, a warning will surprise somebody."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the device.

    Attributes:
        subject: what was looked at, such as ``token``.
        sentence: the fact in plain words.
        fix: the command or step that mends it; with level OK, what could be added.
    """

    subject: str
    level: Level
    sentence: str
    fix: str = ""


Check = Callable[[], Iterable[Finding]]


def ok(subject: str, sentence: str, fix: str = "") -> Finding:
    """Nothing is wrong."""
    return Finding(subject, Level.OK, sentence, fix)


def warning(subject: str, sentence: str, fix: str) -> Finding:
    """It works, but not as well as it could, or not for long."""
    return Finding(subject, Level.WARNING, sentence, fix)


def problem(subject: str, sentence: str, fix: str) -> Finding:
    """Something does not work."""
    return Finding(subject, Level.PROBLEM, sentence, fix)
