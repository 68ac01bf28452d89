"""Tables of a TOML file, checked key by key with errors that name the file, the key and the fix."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

from pocketserve.messages import did_you_mean

MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024
"""Of a file's name, as Linux has it, and of the whole path below the model's folder."""


class ManifestError(Exception):
    """A manifest that cannot be used; the text names the file, the key and the fix."""


class TomlTable:
    """A TOML table whose keys are removed as they are read; what is left over at the end is a spelling mistake.

    A missing key gives None, unless the method says otherwise. All methods raise ManifestError for a value of another
    type or out of range; it names the file, and by ``prefix`` the path to this table, with a dot at its end.
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
        """Remove and return a value; say what is expected, and what else may help, where it does not pass the check."""
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
        return tuple(
            self.take(key, lambda value: _is_list(value, str), "a list of texts") or ()
        )

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        """Return one of several texts."""
        text = self._left.get(key)
        hint = (
            did_you_mean(text, choices)
            if isinstance(text, str) and text not in choices
            else ""
        )
        value: str | None = self.take(
            key, lambda value: value in choices, f"one of {', '.join(choices)}", hint
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
        """Return one finite number or a list of them, one for each of what ``each`` says."""

        def check(value: Any) -> bool:
            items = value if isinstance(value, list) else [value]
            return bool(items) and all(
                _is_number(item) and (item or not nonzero) for item in items
            )

        value = self.take(
            key,
            check,
            f"numbers, one per {each}" + (" and none of them 0" if nonzero else ""),
        )
        if value is None:
            return None
        return tuple(map(float, value if isinstance(value, list) else [value]))

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

        value = self.take(
            key, check, "a list of texts, or a path inside the model's folder"
        )
        return tuple(value) if isinstance(value, list) else value

    def table(self, key: str) -> TomlTable:
        """Return a table within; an empty one if the key is missing."""
        return self.optional_table(key) or TomlTable(
            {}, self._file, f"{self._prefix}{key}."
        )

    def optional_table(self, key: str) -> TomlTable | None:
        """Return a table within."""
        value = self.take(key, lambda value: isinstance(value, dict), "a table")
        return (
            None
            if value is None
            else TomlTable(value, self._file, f"{self._prefix}{key}.")
        )

    def tables(self, key: str) -> list[TomlTable]:
        """Return a list of tables within; empty if the key is missing."""
        values = (
            self.take(
                key,
                lambda value: _is_list(value, dict),
                f"a list of tables ([[{key}]])",
            )
            or []
        )
        return [
            TomlTable(value, self._file, f"{self._prefix}{key}[{index}].")
            for index, value in enumerate(values)
        ]

    def named_tables(self, key: str) -> dict[str, TomlTable]:
        """Return a table of tables, by names that the owner chooses."""
        inner = self.table(key)
        return {name: inner.table(name) for name in inner.left()}

    def left(self) -> list[str]:
        """Return the keys that were not read yet."""
        return list(self._left)

    def rest(self) -> dict[str, Any]:
        """Remove and return all that is left, unchecked."""
        rest, self._left = self._left, {}
        return rest

    def known_keys(self) -> list[str]:
        """Return the keys that were asked for so far, whether they are there or not."""
        return list(self._keys)

    def refuse_rest(self, way_out: Callable[[str], str] = lambda key: "") -> None:
        """Refuse keys that were not read.

        Args:
            way_out: returns where else an unknown key has a meaning, empty where nowhere.
        """
        for key in self._left:
            from difflib import (
                get_close_matches,
            )  # late: only those who mistype need it

            from pocketserve.runtimes.engines import engine_note

            close = get_close_matches(key, self._keys, n=1)
            hint = (
                f"did you mean {close[0]!r}?"
                if close
                else f"known keys are {', '.join(self._keys)}"
            )
            if not (
                close and self._prefix
            ):  # inside a table, its own keys are more likely than another's
                hint = way_out(key) or hint
            note = engine_note(key, self._left[key])
            raise ManifestError(
                f"{self._file}: unknown key {self._prefix}{key}; {hint}{note}"
            )


class Section(NamedTuple):
    """A table of a manifest that belongs to tasks."""

    name: str  # of the table
    options: type  # the class of its options; ``options()`` holds the defaults
    parse: Callable[[TomlTable], Any] | None = (
        None  # None where the class declares every key, see declared_values
    )
    files: Callable[[Any], Iterable[str | None]] = (
        lambda options: ()
    )  # names of files that the options name

    def read(self, table: TomlTable) -> Any:
        """Return the options; keys that are left are refused by the caller as misspelt."""
        return (
            self.parse(table)
            if self.parse
            else self.options(**declared_values(self.options, table))
        )

    def known_keys(self) -> list[str]:
        """Return the keys that the table may have."""
        empty = TomlTable({}, "", "")
        with contextlib.suppress(ManifestError):  # of a key that has to be there
            self.read(empty)
        return empty.known_keys()


def declared_values(options: type, table: TomlTable) -> dict[str, Any]:
    """Return the keys of a table that a class of options declares, as far as they are there.

    A field of type ``Annotated[int, TomlTable.integer, 1, 9]`` is read by that method with these arguments.
    """
    hints = get_type_hints(options, include_extras=True)
    readers = {
        key: hint.__metadata__
        for key, hint in hints.items()
        if get_origin(hint) is Annotated
    }
    values = {
        key: read(table, key, *arguments) for key, (read, *arguments) in readers.items()
    }
    return {key: value for key, value in values.items() if value not in (None, "")}


def is_contained_name(value: object) -> bool:
    """Return whether a manifest's path is relative and stays below its folder as written (links are checked later).

    Longer paths than systems have are refused here, where the error says so.
    """
    if (
        not isinstance(value, str)
        or not value
        or "\0" in value
        or "\\" in value
        or value.startswith("/")
    ):
        return False
    parts = value.split("/")
    return (
        ".." not in parts
        and max(map(_bytes, parts)) <= MAX_NAME_BYTES
        and _bytes(value) <= MAX_PATH_BYTES
    )


def _bytes(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _is_number(value: Any) -> bool:
    # Bounded so that it fits a float32; NaN and infinities fail the comparison.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -1e30 <= value <= 1e30
    )


def _show(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # TOML reads hexadecimal integers of any length; Python prints 4300 digits at most
        return "a number of over 4300 digits"
