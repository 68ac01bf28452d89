"""Results of checks."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Level(enum.StrEnum):
    """Severity: a problem keeps something from working, a warning will surprise somebody."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """A fact about the device.

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
    """Return a finding that nothing is wrong."""
    return Finding(subject, Level.OK, sentence, fix)


def warning(subject: str, sentence: str, fix: str) -> Finding:
    """Return a finding that something works, but not as well as it could, or not for long."""
    return Finding(subject, Level.WARNING, sentence, fix)


def problem(subject: str, sentence: str, fix: str) -> Finding:
    """Return a finding that something does not work."""
    return Finding(subject, Level.PROBLEM, sentence, fix)
