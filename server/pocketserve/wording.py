"""Words that commands and errors have in common."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 process``, ``2,000 processes``; ``many`` is ``one`` with an s unless given."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Iterable[str], most: int) -> str:
    """Some names in quotes, and how many more there are."""
    known = list(names)
    shown = ", ".join(repr(name[:128]) for name in known[:most])
    return f"{shown} and {len(known) - most:,} more" if len(known) > most else shown
