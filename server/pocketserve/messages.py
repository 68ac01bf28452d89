"""Words that commands and errors share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MAX_WORD = 40
"""Letters; a longer one is cut."""

MAX_SUGGESTIONS = 5

SERVES_ON = "is still served as it was loaded: "
"""Start of the reason of a loaded version whose changed files cannot be served."""

LOADS_ANEW = "its files changed and are being loaded"
"""Follows :data:`SERVES_ON` if the changed files are still to be loaded."""

PENDING = "pending: "
"""Start of the reason of a future default version that is not loaded yet."""

_ADDRESS = r" at 0x[0-9a-fA-F]+"


def plural(number: int, singular: str, many: str = "") -> str:
    """Return a number with its noun, such as ``2,000 processes``.

    ``many`` is ``singular`` with an s by default.
    """
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def listed(names: Iterable[str], maximum: int) -> str:
    """Return some names in quotes, and how many more there are."""
    names = list(names)
    text = ", ".join(repr(name[:128]) for name in names[:maximum])
    return f"{text} and {len(names) - maximum:,} more" if len(names) > maximum else text


def label_list(labels: Iterable[str]) -> str:
    """Return labels separated by commas; quote those with commas."""
    return ", ".join(
        json.dumps(label, ensure_ascii=False) if "," in label else label
        for label in labels
    )


def excerpt(text: object, maximum: int = 300) -> str:
    """Return another program's text as part of a sentence.

    One line, cut between words, without a full stop.

    Addresses in memory are left out: they differ from run to run.
    """
    line = re.sub(_ADDRESS, "", " ".join(str(text).split()))
    if len(line) <= maximum:
        return line.rstrip(".: ")
    head, _, word = line[: maximum + 1].rpartition(" ")
    return f"{head if head and len(word) < MAX_WORD else line[:maximum]} …"


def near(name: str, names: Iterable[str]) -> list[str]:
    """Return the likely intended names for an unknown one.

    Matching last words come first, then first words, then similar names.
    """
    import difflib  # for a mistake only: a start does without it

    name, names = name[:64], list(names)
    ends = [
        other for other in names if name and other.endswith((f"_{name}", f"-{name}"))
    ]
    begins = [
        other for other in names if name and other.startswith((f"{name}_", f"{name}-"))
    ]
    return (ends or begins)[:MAX_SUGGESTIONS] or difflib.get_close_matches(
        name, names, n=1, cutoff=0.7
    )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'digits'?`` or nothing."""
    close = near(name, names)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
