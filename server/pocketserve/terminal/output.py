"""Output of commands: plain tables for people, JSON for programs; and nothing that commands a terminal.

Names, keys and reasons come from files and peers that anybody may have made. So whatever a command writes passes
through :func:`plain_output`, and whatever the server logs through ``LogFormatter``: control characters, and those
that turn or hide text, arrive as their escapes.
"""

from __future__ import annotations

import contextlib
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

NARROW: Final = 60
"""Columns of a phone's terminal."""

LEAST_ROOM: Final = 20
"""Columns in which a broken text can still be read; where there are fewer, it has lines of its own."""

INDENT: Final = "    "
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"
STYLES: Final = {
    **dict.fromkeys(("ok", "ready", "loaded", "READY", "yes"), GREEN),
    **dict.fromkeys(("WARNING", "no"), YELLOW),
    **dict.fromkeys(("PROBLEM", "unavailable", "UNAVAILABLE", "pocketserve:"), RED),
}
"""Words that say how something stands -> how a terminal shows them."""

NUMBER: Final = r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ?(B|kB|MB|GB|ms|s|%))?"
"""A number with its unit, as tables have them."""


VALUE_AND_UNIT: Final = r"(\d) ((?:B|kB|MB|GB|ms|s|%)(?!\w))"
"""A number and its unit within a text: no line ends between them."""


def printable(text: str, keep: str = "") -> str:
    """Return the text as one line, with terminal control characters escaped.

    Letters of all scripts stay, and what is in ``keep``. Controls, line ends, halves of characters, and characters that
    set the direction of text or show nothing at all do not.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in SPACES or char in keep
        else repr(char)[1:-1]
        for char in text
    )


class PlainStream:
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


class _UnreadStream:
    """Standard error whose reader may go: words that nobody reads must not end the work that they are about."""

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
    """Lead a stream whose reader has gone to nowhere: the interpreter flushes it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def error_stream(stream: TextIO) -> Any:
    """Return what commands write as standard error, above a stream of that: escaped, and it never fails."""
    return PlainStream(_UnreadStream(stream))  # type: ignore[arg-type]


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Escape what commands a terminal, on standard output and standard error, within the block."""
    streams = sys.stdout, sys.stderr
    # One that is closed is None, and stays so.
    sys.stdout = PlainStream(sys.stdout) if sys.stdout is not None else None
    sys.stderr = error_stream(sys.stderr) if sys.stderr is not None else None
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
    print(
        "".join(
            char if char.isprintable() or char in keep else json.dumps(char)[1:-1]
            for char in text
        )
    )


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


def print_text(
    text: str, indent: str = "", *, mark: str = "", stream: TextIO | None = None
) -> None:
    """Print lines, broken between words where the terminal is narrower; what follows a break is indented.

    What others wrote is to be made printable before: it must not begin lines.

    Args:
        mark: how the text begins, painted where it is one of :data:`STYLES`.
        stream: standard output by default.
    """
    stream = sys.stdout if stream is None else stream
    for line in text.splitlines():
        lines = _wrapped(printable(line), "", indent, _columns(stream))
        _print_painted(_paint(mark, stream) + lines[len(mark) :], stream)


def print_indented(text: str) -> None:
    """Print a text that is set off from the line above, broken between words where the terminal is narrower."""
    print(_wrapped(printable(text), INDENT, INDENT, _columns(sys.stdout)))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()
) -> None:
    """Print columns as wide as their widest cell: numbers to the right, the rest to the left.

    Where the terminal is too narrow for it, the last column is broken between words, or has lines of its own.

    Args:
        spare: names of columns that are left out where the terminal is too narrow, in this order.
    """
    columns = [
        _aligned([printable(cell) for cell in cells])
        for cells in zip(header, *rows, strict=True)
    ]
    for name in spare:
        if sum(len(cells[0]) + 2 for cells in columns) - 2 > terminal_columns():
            columns = [cells for cells in columns if cells[0].strip() != name]
    indent = sum(len(cells[0]) + 2 for cells in columns[:-1])
    room = terminal_columns() - indent
    for number, (*cells, last) in enumerate(zip(*columns, strict=True)):
        style = "" if number else BOLD
        begin, last = (
            "".join(f"{_paint(cell, sys.stdout, style)}  " for cell in cells),
            last.rstrip(),
        )
        if len(last) <= room:
            _print_painted(
                (begin + _paint(last, sys.stdout, style)).rstrip(), sys.stdout
            )
        elif room >= LEAST_ROOM:
            _print_painted(
                begin + _wrapped(last, " " * indent, " " * indent)[indent:], sys.stdout
            )
        else:
            _print_painted(begin.rstrip(), sys.stdout)
            print(_wrapped(last.strip(), INDENT, INDENT))


def _aligned(cells: Sequence[str]) -> list[str]:
    """Return the cells of a column, all of one width."""
    width, values = (
        max(map(len, cells)),
        [cell for cell in cells[1:] if cell not in ("", "-")],
    )
    is_number = values and all(re.fullmatch(NUMBER, cell) for cell in values)
    return [cell.rjust(width) if is_number else cell.ljust(width) for cell in cells]


def print_wide_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; where it is wider than the terminal, in parts one below the other, each with the first column."""
    widths = [
        max(len(printable(row[column])) for row in (header, *rows))
        for column in range(len(header))
    ]
    parts: list[list[int]] = [[0]]
    for column in range(1, len(header)):
        if (
            len(parts[-1]) > 1
            and sum(widths[each] + 2 for each in (*parts[-1], column)) - 2
            > terminal_columns()
        ):
            parts.append([0])
        parts[-1].append(column)
    for number, part in enumerate(parts):
        print(end="\n" if number else "")
        print_table(
            [header[column] for column in part],
            [[row[column] for column in part] for row in rows],
        )


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair a line, broken between words where need be; empty values are left out."""
    width = max((len(name) for name, value in facts if value), default=0) + 2
    indent = " " * width if terminal_columns() - width >= LEAST_ROOM else INDENT
    for name, value in facts:
        if value:
            print(_wrapped(printable(value), printable(name).ljust(width), indent))


def _wrapped(text: str, begin: str, indent: str, columns: int | None = None) -> str:
    """Return a text in as many lines as the terminal needs, ``begin`` before the first and ``indent`` before others."""
    columns = terminal_columns() if columns is None else columns
    if len(begin) + len(text) <= columns:
        return begin + text  # as it is, with all spaces
    import textwrap  # late, for a start

    lines = textwrap.fill(
        re.sub(VALUE_AND_UNIT, "\\1\0\\2", text),
        columns,
        initial_indent=begin,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace("\0", " ")  # which no printable text has


def _columns(stream: TextIO | None) -> int:
    """Return the width of running text; an error that no terminal shows stays a line, for programs."""
    if stream is None or stream is not sys.stderr:
        return min(MAX_TEXT, terminal_columns())
    return min(MAX_TEXT, terminal_columns(2)) if stream.isatty() else NO_TERMINAL


def _paint(text: str, stream: TextIO | None, style: str = "") -> str:
    """Return printable text in the style of its word, where the stream is a terminal and NO_COLOR is not set."""
    style = style or STYLES.get(text.strip(), "")
    if not style or stream is None or not stream.isatty():
        return text
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{style}m{text}\033[0m"


def _print_painted(line: str, stream: TextIO | None) -> None:
    """Print a line of printable text and our own styles."""
    print(line, file=getattr(stream, "unescaped", stream))


def human_bytes(size: float) -> str:
    """Return a size with a unit that fits, such as ``1.9 MB``."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
