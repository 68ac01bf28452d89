"""Words that commands and errors have in common."""

from __future__ import annotations

from collections.abc import Iterable

MAX_WORD = 40
"""Letters; a longer one is cut."""


def plural(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 process``, ``2,000 processes``; ``many`` is ``one`` with an s unless given."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Iterable[str], maximum: int) -> str:
    """Some names in quotes, and how many more there are."""
    known = list(names)
    shown = ", ".join(repr(name[:128]) for name in known[:maximum])
    return f"{shown} and {len(known) - maximum:,} more" if len(known) > maximum else shown


def excerpt(text: object, maximum: int = 300) -> str:
    """Return what another program says, as a part of a sentence: on one line, cut between words, without its full
    stop.
    """
    line = " ".join(str(text).split())
    if len(line) <= maximum:
        return line.rstrip(".: ")
    head, _, word = line[: maximum + 1].rpartition(" ")
    return f"{head if head and len(word) < MAX_WORD else line[:maximum]} …"


def near(asked: str, known: Iterable[str], cutoff: float = 0.7) -> list[str]:
    """Return which known names are meant by one that is not: those that end with it, else begin with it, else the most
    alike.

    Args:
        cutoff: how much alike, 0 to 1.
    """
    import difflib  # for a mistake only: a start does without it

    asked, among = asked[:64], list(known)
    ends = [name for name in among if asked and name.endswith(f"_{asked}")]
    begins = [name for name in among if asked and name.startswith(f"{asked}_")]
    return ends or begins or difflib.get_close_matches(asked, among, n=1, cutoff=cutoff)


def did_you_mean(asked: str, known: Iterable[str]) -> str:
    """``; did you mean 'digits'?`` behind an error that names something unknown; empty where nothing is like it."""
    found = near(asked, known)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
