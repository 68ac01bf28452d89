"""Output of commands: plain tables for people, JSON for programs; and nothing that commands a terminal.

Names, keys and reasons come from files and peers that anybody may have made. So whatever a command writes passes
through :func:`plain_output`, and whatever the server logs through ``LogFormatter``: control characters, and those
that turn or hide text, arrive as their escapes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, TextIO

SPACES: Final = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
"""Characters that Python counts as not printable, and that do no more than stand between words."""

NO_TERMINAL: Final = 1 << 20
"""Columns where nothing limits them."""

MAX_TEXT: Final = 120
"""Columns of running text: longer lines are hard to read."""

NUMBER: Final = r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ?(B|kB|MB|GB|ms|s|%))?"
"""A number with its unit, as tables have them."""


def printable(text: str, keep: str = "") -> str:
    """Return the text in one line that cannot command a terminal, with escapes such as ``\\x1b`` for what could.

    Letters of all scripts stay, and what is in ``keep``. Controls, line ends, halves of characters, and characters that
    set the direction of text or show nothing at all do not.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in SPACES or char in keep else repr(char)[1:-1] for char in text)


class _PlainStream:
    """A stream of text through which no escape passes; lines and tabulators stay."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        self.unescaped.write(printable(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Escape what commands a terminal, on standard output and standard error, within the block."""
    streams = sys.stdout, sys.stderr
    # One that is closed is None, and stays so.
    sys.stdout, sys.stderr = (_PlainStream(stream) if stream is not None else None for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def print_control(sequence: str) -> None:
    """Command the terminal of standard error, with a sequence of our own."""
    stream = getattr(sys.stderr, "unescaped", sys.stderr)
    stream.write(sequence)
    stream.flush()


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    text, keep = json.dumps(value, indent=2, ensure_ascii=False), f"{SPACES}\n"
    print("".join(char if char.isprintable() or char in keep else json.dumps(char)[1:-1] for char in text))


def terminal_columns(descriptor: int = 1) -> int:
    """Return the width of a descriptor's terminal, or what COLUMNS says; where there is none, no line is too long."""
    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", "0"))) > 0:
            return columns
    with contextlib.suppress(OSError):
        return os.get_terminal_size(descriptor).columns or NO_TERMINAL
    return NO_TERMINAL


def confirm(question: str) -> bool | None:
    """Ask on the terminal and return whether the answer is yes; None where nobody can be asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def print_text(text: str, indent: str = "") -> None:
    """Print lines, broken between words where the terminal is narrower; what follows a break is indented.

    What others wrote is to be made printable before: it must not begin lines.
    """
    import textwrap  # late, for a start

    wrap = functools.partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)
    for line in text.splitlines():
        print(wrap(printable(line), min(MAX_TEXT, terminal_columns()), subsequent_indent=indent))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> None:
    """Print columns as wide as their widest cell: numbers to the right, the rest to the left.

    Args:
        spare: names of columns that are left out where the terminal is too narrow, in this order.
    """
    columns = [_aligned([printable(cell) for cell in cells]) for cells in zip(header, *rows, strict=True)]
    for name in spare:
        if sum(len(cells[0]) + 2 for cells in columns) - 2 > terminal_columns():
            columns = [cells for cells in columns if cells[0].strip() != name]
    for row in zip(*columns, strict=True):
        print("  ".join(row).rstrip())


def _aligned(cells: Sequence[str]) -> list[str]:
    """Return the cells of a column, all of one width."""
    width, values = max(map(len, cells)), [cell for cell in cells[1:] if cell not in ("", "-")]
    is_number = values and all(re.fullmatch(NUMBER, cell) for cell in values)
    return [cell.rjust(width) if is_number else cell.ljust(width) for cell in cells]


def print_wide_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; where it is wider than the terminal, in parts one below the other, each with the first column."""
    widths = [max(len(printable(row[column])) for row in (header, *rows)) for column in range(len(header))]
    parts: list[list[int]] = [[0]]
    for column in range(1, len(header)):
        if len(parts[-1]) > 1 and sum(widths[each] + 2 for each in (*parts[-1], column)) - 2 > terminal_columns():
            parts.append([0])
        parts[-1].append(column)
    for number, part in enumerate(parts):
        print(end="\n" if number else "")
        print_table([header[column] for column in part], [[row[column] for column in part] for row in rows])


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; empty values are left out."""
    width = max((len(name) for name, value in facts if value), default=0)
    for name, value in facts:
        if value:
            print(f"{printable(name).ljust(width)}  {printable(value)}")


def human_bytes(size: float) -> str:
    """Return a size with a unit that fits, such as ``1.9 MB``."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
