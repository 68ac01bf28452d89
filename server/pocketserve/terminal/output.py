"""Print tables for people and JSON for programs, without terminal escapes.

Names, keys and reasons come from untrusted files and peers. The output of commands
therefore passes through :func:`plain_output`, and the log through ``LogFormatter``: both
escape control characters, and those that reverse or hide text.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, TextIO

SPACES: Final = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
"""Harmless spaces that Python counts as not printable."""

NO_TERMINAL: Final = 1 << 20
"""Columns without a terminal: unlimited."""

MAX_TEXT: Final = 120
"""Columns of running text: longer lines are hard to read."""

NARROW: Final = 60
"""Columns of a phone's terminal."""

LEAST_ROOM: Final = 20
"""Columns that wrapped text needs; otherwise it gets its own lines."""

INDENT: Final = "    "
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"
STYLES: Final = {
    **dict.fromkeys(("ok", "ready", "loaded", "READY", "yes"), GREEN),
    **dict.fromkeys(("WARNING", "no"), YELLOW),
    **dict.fromkeys(("PROBLEM", "unavailable", "UNAVAILABLE", "pocketserve:"), RED),
}
"""Colours of words that are a state."""

NUMBER: Final = r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ?(B|kB|MB|GB|ms|s|%))?"
"""A number with its unit, as in tables."""

VALUE_AND_UNIT: Final = r"(\d) ((?:B|kB|MB|GB|ms|s|%)(?!\w))"
"""A number and its unit within a text, never wrapped between them."""


def printable(text: str, keep: str = "") -> str:
    """Escape a text to one line that is safe for a terminal.

    Letters of all scripts and the characters in ``keep`` stay. Control characters, line
    ends, surrogates, and invisible characters or those that set the direction of text
    are escaped, such as ``\\x1b``.
    """
    if text.isprintable():
        return text
    chars = []
    for char in text:
        is_safe = char.isprintable() or char in SPACES or char in keep
        chars.append(char if is_safe else repr(char)[1:-1])
    return "".join(chars)


class PlainStream:
    """A text stream that escapes terminal commands; line ends and tabs stay."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        self.unescaped.write(printable(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


class _UnreadStream:
    """A stderr wrapper that ignores broken pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except BrokenPipeError:
            give_up(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            give_up(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def give_up(stream: TextIO) -> None:
    """Redirect a broken stream to the null device.

    The interpreter flushes it once more when it exits.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def error_stream(stream: TextIO) -> Any:
    """Wrap standard error: escaped, and without errors for broken pipes."""
    return PlainStream(_UnreadStream(stream))  # type: ignore[arg-type]


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Escape standard output and standard error within the block."""
    streams = sys.stdout, sys.stderr
    # A closed stream is None and stays None.
    sys.stdout = PlainStream(sys.stdout) if sys.stdout is not None else None
    sys.stderr = error_stream(sys.stderr) if sys.stderr is not None else None
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def print_control(sequence: str) -> None:
    """Write a control sequence to the terminal of standard error."""
    stream = getattr(sys.stderr, "unescaped", sys.stderr)
    stream.write(sequence)
    stream.flush()


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    keep = f"{SPACES}\n"
    chars = []
    for char in json.dumps(value, indent=2, ensure_ascii=False):
        is_safe = char.isprintable() or char in keep
        chars.append(char if is_safe else json.dumps(char)[1:-1])
    print("".join(chars))


def terminal_columns(descriptor: int = 1) -> int:
    """Return the width from COLUMNS or the terminal, else ``NO_TERMINAL``."""
    with contextlib.suppress(ValueError):
        columns = int(os.environ.get("COLUMNS", "0"))
        if columns > 0:
            return columns
    with contextlib.suppress(OSError):
        return os.get_terminal_size(descriptor).columns or NO_TERMINAL
    return NO_TERMINAL


def confirm(question: str) -> bool | None:
    """Ask a yes-no question on the terminal; None without a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def print_text(
    text: str, indent: str = "", *, mark: str = "", stream: TextIO | None = None
) -> None:
    """Print lines, wrapped to the terminal with an indent.

    Untrusted parts must be made printable before, so that they cannot begin lines.

    Args:
        mark: the beginning of the text, coloured if it is one of :data:`STYLES`.
        stream: standard output by default.
    """
    if stream is None:
        stream = sys.stdout
    for line in text.splitlines():
        lines = wrap(printable(line), "", indent, _columns(stream))
        _print_painted(_paint(mark, stream) + lines[len(mark) :], stream)


def print_indented(text: str) -> None:
    """Print an indented text, wrapped to the terminal."""
    print(wrap(printable(text), INDENT, INDENT, _columns(sys.stdout)))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()
) -> None:
    """Print aligned columns, with numbers to the right.

    If the terminal is too narrow, the last column is wrapped or gets its own lines.

    Args:
        spare: names of columns to omit, in this order, if the terminal is too narrow.
    """
    columns = []
    for cells in zip(header, *rows, strict=True):
        columns.append(_aligned(list(map(printable, cells))))
    for name in spare:
        if _width(columns) - 2 > terminal_columns():
            columns = [cells for cells in columns if cells[0].strip() != name]
    indent = _width(columns[:-1])
    style = BOLD
    for row in zip(*columns, strict=True):
        _print_row(row, indent, style)
        style = ""


def _width(columns: Sequence[Sequence[str]]) -> int:
    """Return the width of aligned columns, each with a gap after it."""
    return sum(len(cells[0]) + 2 for cells in columns)


def _print_row(row: Sequence[str], indent: int, style: str) -> None:
    *cells, last = row
    last = last.rstrip()
    room = terminal_columns() - indent
    begin = ""
    for cell in cells:
        begin += f"{_paint(cell, sys.stdout, style)}  "
    if len(last) <= room:
        line = begin + _paint(last, sys.stdout, style)
        _print_painted(line.rstrip(), sys.stdout)
    elif room >= LEAST_ROOM:
        wrapped = wrap(last, " " * indent, " " * indent)
        _print_painted(begin + wrapped[indent:], sys.stdout)
    else:
        _print_painted(begin.rstrip(), sys.stdout)
        print(wrap(last.strip(), INDENT, INDENT))


def _aligned(cells: Sequence[str]) -> list[str]:
    """Pad the cells of a column to the same width."""
    width = max(map(len, cells))
    values = [cell for cell in cells[1:] if cell not in ("", "-")]
    is_number = values and all(re.fullmatch(NUMBER, cell) for cell in values)
    if is_number:
        return [cell.rjust(width) for cell in cells]
    return [cell.ljust(width) for cell in cells]


def print_wide_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, in parts if the terminal is narrow.

    Each part begins with the first column.
    """
    widths = []
    for cells in zip(header, *rows, strict=True):
        widths.append(max(len(printable(cell)) for cell in cells))
    for number, part in enumerate(_split_columns(widths)):
        if number:
            print()
        part_rows = []
        for row in rows:
            part_rows.append([row[column] for column in part])
        print_table([header[column] for column in part], part_rows)


def _split_columns(widths: Sequence[int]) -> list[list[int]]:
    """Group column numbers into parts that fit the terminal."""
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        width = sum(widths[each] + 2 for each in (*parts[-1], column)) - 2
        if len(parts[-1]) > 1 and width > terminal_columns():
            parts.append([0])
        parts[-1].append(column)
    return parts


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and non-empty values, one pair a line."""
    width = max((len(name) for name, value in facts if value), default=0) + 2
    has_room = terminal_columns() - width >= LEAST_ROOM
    indent = INDENT
    if has_room:
        indent = " " * width
    for name, value in facts:
        if value:
            print(wrap(printable(value), printable(name).ljust(width), indent))


def wrap(text: str, begin: str, indent: str, columns: int | None = None) -> str:
    """Wrap a text between words; ``begin`` precedes the first line, ``indent`` the rest.

    Args:
        columns: the width; by default the terminal's.
    """
    if columns is None:
        columns = terminal_columns()
    if len(begin) + len(text) <= columns:
        return begin + text  # unchanged, with all spaces
    import textwrap  # late: starting a server needs none

    lines = textwrap.fill(
        re.sub(VALUE_AND_UNIT, "\\1\0\\2", text),
        columns,
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace("\0", " ")  # printable text has no NUL


def _columns(stream: TextIO | None) -> int:
    """Return the width of running text, unlimited for programs."""
    if stream is None or stream is not sys.stderr:
        return min(MAX_TEXT, terminal_columns())
    if stream.isatty():
        return min(MAX_TEXT, terminal_columns(2))
    return NO_TERMINAL


def _paint(text: str, stream: TextIO | None, style: str = "") -> str:
    """Colour a text on a terminal, unless NO_COLOR is set."""
    style = style or STYLES.get(text.strip(), "")
    if not style or stream is None or not stream.isatty():
        return text
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{style}m{text}\033[0m"


def _print_painted(line: str, stream: TextIO | None) -> None:
    """Print printable text with our own styles."""
    print(line, file=getattr(stream, "unescaped", stream))


def human_bytes(size: float) -> str:
    """Format a size with a fitting unit, such as ``1.9 MB``."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            digits = 1
            if unit == "B":
                digits = 0
            return f"{size:.{digits}f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
