"""Check TOML tables key by key, with helpful errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

from pocketserve.messages import did_you_mean

MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024
"""Linux's limit of a file name, and the limit of the path below a model's folder."""


class ManifestError(Exception):
    """An invalid manifest; the message explains the fix."""


class TomlTable:
    """A TOML table whose keys are removed when they are read.

    Keys that are left over are spelling mistakes. A missing key gives None, unless the
    method says otherwise. All methods raise ManifestError for a value of another type
    or out of range, with the file and ``prefix``, the path to this table with a dot.
    """

    def __init__(self, values: Mapping[str, Any], file_name: str, prefix: str) -> None:
        self._left = dict(values)
        self._keys: dict[str, None] = {}
        self._file = file_name
        self._prefix = prefix

    def fault(self, key: str, detail: str) -> ManifestError:
        """Return an error that names the file, the table and the key."""
        return ManifestError(f"{self._file}: {self._prefix}{key} {detail}")

    def take(
        self, key: str, check: Callable[[Any], bool], expected: str, hint: str = ""
    ) -> Any:
        """Remove and return a checked value."""
        self._keys[key] = None
        value = self._left.pop(key, None)
        if value is not None and not check(value):
            raise self.fault(key, f"must be {expected}, not {_show(value)}{hint}")
        return value

    def text(self, key: str) -> str:
        """Return a text; empty if the key is missing."""
        return self.take(key, lambda value: isinstance(value, str), "text") or ""

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; empty if the key is missing."""
        value = self.take(key, lambda value: _is_list(value, str), "a list of texts")
        return tuple(value or ())

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        """Return one of several texts."""
        text = self._left.get(key)
        hint = ""
        if isinstance(text, str) and text not in choices:
            hint = did_you_mean(text, choices)
        expected = f"one of {', '.join(choices)}"
        value: str | None = self.take(
            key, lambda value: value in choices, expected, hint
        )
        return value

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number, limits included."""
        expected = f"a whole number from {low} to {high}"
        value: int | None = self.take(
            key, lambda value: type(value) is int and low <= value <= high, expected
        )
        return value

    def number(self, key: str, low: float, high: float) -> float | None:
        """Return a finite number, limits included."""
        expected = f"a number from {low:g} to {high:g}"
        value: float | None = self.take(
            key, lambda value: _is_number(value) and low <= value <= high, expected
        )
        return value

    def numbers(
        self, key: str, *, nonzero: bool = False, each: str = "colour channel"
    ) -> tuple[float, ...] | None:
        """Return one finite number, or a list of them.

        Args:
            each: the item that each number belongs to, for the error message.
        """

        def check(value: Any) -> bool:
            items = _as_list(value)
            if not items or not all(map(_is_number, items)):
                return False
            return not nonzero or all(items)

        expected = f"numbers, one per {each}"
        if nonzero:
            expected += " and none of them 0"
        value = self.take(key, check, expected)
        if value is None:
            return None
        return tuple(map(float, _as_list(value)))

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        value: bool | None = self.take(
            key, lambda value: isinstance(value, bool), "true or false"
        )
        return value

    def relative_path(self, key: str) -> str | None:
        """Return a path below the model's folder, see :func:`is_contained_name`."""
        value: str | None = self.take(
            key, is_contained_name, "a path inside the model's folder"
        )
        return value

    def path_or_texts(self, key: str) -> str | tuple[str, ...] | None:
        """Return a path below the model's folder, or a list of texts."""

        def check(value: Any) -> bool:
            return is_contained_name(value) or _is_list(value, str)

        value: str | list[str] | None = self.take(
            key, check, "a list of texts, or a path inside the model's folder"
        )
        if isinstance(value, list):
            return tuple(value)
        return value

    def table(self, key: str) -> TomlTable:
        """Return an inner table; an empty one if the key is missing."""
        inner = self.optional_table(key)
        if inner is not None:
            return inner
        return TomlTable({}, self._file, f"{self._prefix}{key}.")

    def optional_table(self, key: str) -> TomlTable | None:
        """Return an inner table."""
        value = self.take(key, lambda value: isinstance(value, dict), "a table")
        if value is None:
            return None
        return TomlTable(value, self._file, f"{self._prefix}{key}.")

    def tables(self, key: str) -> list[TomlTable]:
        """Return a list of inner tables; empty if the key is missing."""
        expected = f"a list of tables ([[{key}]])"
        values = self.take(key, lambda value: _is_list(value, dict), expected)
        tables = []
        for index, value in enumerate(values or []):
            prefix = f"{self._prefix}{key}[{index}]."
            tables.append(TomlTable(value, self._file, prefix))
        return tables

    def named_tables(self, key: str) -> dict[str, TomlTable]:
        """Return the inner tables of a table, by name."""
        inner = self.table(key)
        return {name: inner.table(name) for name in inner.left()}

    def left(self) -> list[str]:
        """Return the unread keys."""
        return list(self._left)

    def rest(self) -> dict[str, Any]:
        """Remove and return all unread keys, unchecked."""
        rest = self._left
        self._left = {}
        return rest

    def known_keys(self) -> list[str]:
        """Return the keys that were read so far."""
        return list(self._keys)

    def refuse_rest(self, way_out: Callable[[str], str] = lambda key: "") -> None:
        """Raise if there are unread keys.

        Args:
            way_out: says where an unknown key would be valid; "" if nowhere.
        """
        for key in self._left:
            # Imported late, because typos are rare.
            from pocketserve.runtimes.engines import engine_note

            hint = self._hint(key, way_out)
            note = engine_note(key, self._left[key])
            raise ManifestError(
                f"{self._file}: unknown key {self._prefix}{key}; {hint}{note}"
            )

    def _hint(self, key: str, way_out: Callable[[str], str]) -> str:
        from difflib import get_close_matches  # late, because typos are rare

        close = get_close_matches(key, self._keys, n=1)
        hint = f"known keys are {', '.join(self._keys)}"
        if close:
            hint = f"did you mean {close[0]!r}?"
        # Inside a table, its own keys are more likely than those of another.
        if close and self._prefix:
            return hint
        return way_out(key) or hint


def _as_list(value: Any) -> list[Any]:
    """Return a list as it is, and any other value in a list."""
    if isinstance(value, list):
        return value
    return [value]


class Section(NamedTuple):
    """A table of a manifest that belongs to tasks.

    Attributes:
        name: the table's name.
        options: the class of its options; ``options()`` has the defaults.
        parse: None if the class declares every key, see :func:`declared_values`.
        files: returns the names of files in the options.
    """

    name: str
    options: type
    parse: Callable[[TomlTable], Any] | None = None
    files: Callable[[Any], Iterable[str | None]] = lambda options: ()

    def read(self, table: TomlTable) -> Any:
        """Parse the options; the caller rejects keys that are left."""
        if self.parse:
            return self.parse(table)
        return self.options(**declared_values(self.options, table))

    def known_keys(self) -> list[str]:
        """Return the valid keys of the table."""
        empty = TomlTable({}, "", "")
        with contextlib.suppress(ManifestError):  # a required key is missing
            self.read(empty)
        return empty.known_keys()


def declared_values(options: type, table: TomlTable) -> dict[str, Any]:
    """Return the values of the keys that options declare.

    A field of type ``Annotated[int, TomlTable.integer, 1, 9]`` is read by that method
    with these arguments.
    """
    hints = get_type_hints(options, include_extras=True)
    values = {}
    for key, hint in hints.items():
        if get_origin(hint) is Annotated:
            read, *arguments = hint.__metadata__
            value = read(table, key, *arguments)
            if value not in (None, ""):
                values[key] = value
    return values


def is_contained_name(value: object) -> bool:
    """Return whether a path stays below its folder.

    Links are checked later. Paths that are too long for Linux are rejected here, with a
    clear error.
    """
    if not isinstance(value, str) or not value or value.startswith("/"):
        return False
    if "\0" in value or "\\" in value:
        return False
    parts = value.split("/")
    if ".." in parts or _bytes(value) > MAX_PATH_BYTES:
        return False
    return max(map(_bytes, parts)) <= MAX_NAME_BYTES


def _bytes(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number, small enough for a float32."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # NaN and infinities fail the comparison.
    return -1e30 <= value <= 1e30


def _show(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    # TOML allows hexadecimal integers of any length; Python prints at most 4300 digits.
    except ValueError:
        return "a number of over 4300 digits"
