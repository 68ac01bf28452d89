"""Checks a foreign configuration file against the table of its keys.

A key that changes the input or the answer is either applied by a task, or it makes the model answer as tensors. It is
never silently ignored.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pocketserve.tasks.model_facts import ModelFacts

Media = Literal["picture", "sound"]

MAX_REPORTED = 20
MAX_KEYS = 2000
MAX_KEY_CHARS = 60
MAX_VALUE_CHARS = 40
UNCHECKED = f"all keys after the first {MAX_KEYS}, which were not checked"


class Effect(enum.Enum):
    """Treatment of a key by the server."""

    APPLIED = "a task reads it and does what it says"
    HARMLESS = "it changes neither the input nor the answer"
    UNSUPPORTED = "it changes the input or the answer, and is not supported"


class Key(NamedTuple):
    """A row of a table.

    Attributes:
        path: the key, with dots for keys of nested objects, such as ``size.shortest_edge``. ``*`` stands for any key
            of an object, and for any item of a list.
        effect: its treatment by the server.
        source: the project and file that define its meaning.
        neutral: values of an unsupported key that change nothing. None, False and a missing key never change anything.
        tasks: the tasks for which an unsupported key matters; empty for all.
        is_of_free_sizes: whether an unsupported key matters only for inputs that leave their size open.
    """

    path: str
    effect: Effect
    source: str
    neutral: tuple[object, ...] = ()
    tasks: tuple[str, ...] = ()
    is_of_free_sizes: bool = False


def _as_written(content: Mapping[str, Any], model_type: object) -> Mapping[str, Any]:
    return content


def _no_conflicts(content: Mapping[str, Any], task: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, eq=False)
class ForeignFile:
    """The table of one kind of file.

    Attributes:
        name: the file's name, relative to the model's folder.
        keys: the rows. A more exact path comes before one with ``*``.
        reports_unknown: whether keys without a row are worth a note. It is False for files that mostly describe
            the network itself, which the model file contains already.
        complete: adds the defaults of keys that the file leaves out, given ``model_type`` of ``config.json``.
        belongs: returns whether a content is this tool's, for names that several tools use; None for any.
        is_inside: whether the keys are properties inside the model file, as text in Python's notation.
        is_replaced: returns whether the manifest describes the input in the file's place; None for never.
        media: of the processor that the file describes; None for other files.
        conflicts: returns supported keys of a completed content whose values can't be
            applied by a task, given its name.
    """

    name: str
    keys: tuple[Key, ...]
    reports_unknown: bool = True
    complete: Callable[[Mapping[str, Any], object], Mapping[str, Any]] = _as_written
    belongs: Callable[[Mapping[str, Any]], bool] | None = None
    is_inside: bool = False
    is_replaced: Callable[[ModelFacts], bool] | None = None
    media: Media | None = None
    conflicts: Callable[[Mapping[str, Any], str], Sequence[str]] = _no_conflicts

    @functools.cached_property
    def rows(self) -> _SplitRows:
        """The rows, prepared for looking up keys."""
        return _prepare(self.keys)


class UnsupportedKey(NamedTuple):
    """A key that changes the answer and is not supported."""

    path: str
    value: object

    def __str__(self) -> str:
        """Return the key and its value, shortened, for messages."""
        text = repr(self.value)
        if len(text) > MAX_VALUE_CHARS:
            text = f"{text[: MAX_VALUE_CHARS - 1]}…"
        return f"{self.path} = {text}"


class Findings(NamedTuple):
    """The result of checking one file.

    Attributes:
        unsupported: keys that change the answer and are not supported.
        unknown: keys without a row in the table, sorted; the last entry says if a file has too many keys to check.
    """

    unsupported: tuple[UnsupportedKey, ...]
    unknown: tuple[str, ...]


def check_keys(
    table: ForeignFile,
    content: Mapping[str, Any],
    task: str = "",
    *,
    has_fixed_size: bool = False,
    ignored: Collection[str] = (),
) -> Findings:
    """Check a file's content against its table.

    Args:
        table: the rows for this kind of file.
        content: the parsed file.
        task: the name of the task that reads it; empty checks the rows of all tasks.
        has_fixed_size: whether the model's inputs have a fixed size.
        ignored: unsupported keys that the owner knows to be irrelevant.
    """
    rows = table.rows
    unsupported: list[UnsupportedKey] = []
    unknown: set[str] = set()
    leaves = _leaves(content, rows)
    for path, value in itertools.islice(leaves, MAX_KEYS):
        row = rows.row_of(path)
        if row is None:
            unknown.add(path[:MAX_KEY_CHARS])
        elif (row.is_of_free_sizes and has_fixed_size) or path in ignored:
            continue
        elif row.effect is Effect.UNSUPPORTED and _matters(row, value, task):
            unsupported.append(UnsupportedKey(path, value))
    for path in table.conflicts(content, task):
        if path not in ignored:
            unsupported.append(UnsupportedKey(path, content.get(path)))
    reported = sorted(unknown)[:MAX_REPORTED] if table.reports_unknown else []
    if next(leaves, None) is not None:
        reported.append(UNCHECKED)
    return Findings(tuple(unsupported[:MAX_REPORTED]), tuple(reported))


@dataclass(frozen=True)
class _SplitRows:
    """The rows of a table, with their paths split.

    Attributes:
        exact: rows by path.
        patterns: split paths with ``*``, and their rows.
        parents: the split paths of all objects that have a row below them.
    """

    exact: Mapping[str, Key]
    patterns: Sequence[tuple[list[str], Key]]
    parents: Sequence[list[str]]

    def row_of(self, path: str) -> Key | None:
        """Return the row of a key; an exact path comes before a pattern."""
        exact = self.exact.get(path)
        if exact is not None or not self.patterns:
            return exact
        parts = path.split(".")
        for pattern, row in self.patterns:
            if _matches(pattern, parts):
                return row
        return None

    def has_rows_below(self, path: str) -> bool:
        """Return whether a row lies below an object."""
        parts = path.split(".")
        return any(_matches(parent, parts) for parent in self.parents)


def _prepare(keys: Sequence[Key]) -> _SplitRows:
    """Split the paths of rows."""
    exact: dict[str, Key] = {}
    patterns: list[tuple[list[str], Key]] = []
    parents: dict[tuple[str, ...], None] = {}
    for row in keys:
        exact[row.path] = row
        parts = row.path.split(".")
        if "*" in parts:
            patterns.append((parts, row))
        for length in range(1, len(parts)):
            parents[tuple(parts[:length])] = None
    return _SplitRows(exact, patterns, [list(parent) for parent in parents])


def _leaves(
    content: Mapping[str, Any], rows: _SplitRows, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield each key with its dotted path; an object is entered if a row lies below it."""
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and rows.has_rows_below(path):
            yield from _leaves(value, rows, f"{path}.")
        else:
            yield path, value


def _matches(pattern: list[str], parts: list[str]) -> bool:
    if len(pattern) != len(parts):
        return False
    return all(
        expected in ("*", part) for expected, part in zip(pattern, parts, strict=True)
    )


def _matters(row: Key, value: object, task: str) -> bool:
    """Return whether an unsupported key changes the answer of a task."""
    if value is None or value is False:
        return False
    if any(
        type(value) is type(neutral) and value == neutral for neutral in row.neutral
    ):
        return False
    return not row.tasks or not task or task in row.tasks
