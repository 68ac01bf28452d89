"""One table of a TOML file, taken apart key by key with errors that name the file, the key and the fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pocketserve.messages import did_you_mean

MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024
"""Of a file's name, as Linux has it, and of the whole path below the model's folder."""


class ManifestError(Exception):
    """A manifest that cannot be used; the text names the file, the key and the fix."""


class Table:
    """One TOML table that is taken apart key by key; what is left over at the end is a spelling mistake.

    What is asked for and is not there is None, unless the method says otherwise.

    Args:
        file_name, prefix: how errors name the file, and the way to this table with a dot at its end.

    Raises:
        ManifestError: from all methods, when a value is not what is asked for.
    """

    def __init__(self, values: Mapping[str, Any], file_name: str, prefix: str) -> None:
        self._left = dict(values)
        self._known: dict[str, None] = {}
        self._file = file_name
        self._prefix = prefix

    def fault(self, key: str, detail: str) -> ManifestError:
        """Return what is wrong with a key, told with the file and the table that it stands in."""
        return ManifestError(f"{self._file}: {self._prefix}{key} {detail}")

    def take(self, key: str, check: Callable[[Any], bool], expected: str, hint: str = "") -> Any:
        """Take a value out; None where the key is missing.

        Args:
            check: whether a value will do.
            expected: what would, in words.
            hint: what else may help, for the error's end.
        """
        self._known[key] = None
        value = self._left.pop(key, None)
        if value is not None and not check(value):
            raise self.fault(key, f"must be {expected}, not {_show(value)}{hint}")
        return value

    def text(self, key: str) -> str:
        """A text; empty where there is none."""
        return self.take(key, lambda value: isinstance(value, str), "text") or ""

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        check = lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)  # noqa: E731
        return tuple(self.take(key, check, "a list of texts") or ())

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        """One of several texts."""
        asked = self._left.get(key)
        hint = did_you_mean(asked, choices) if isinstance(asked, str) and asked not in choices else ""
        value: str | None = self.take(key, lambda value: value in choices, f"one of {', '.join(choices)}", hint)
        return value

    def integer(self, key: str, low: int, high: int) -> int | None:
        """A whole number, limits included."""
        check = lambda value: type(value) is int and low <= value <= high  # noqa: E731
        value: int | None = self.take(key, check, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float) -> float | None:
        """A finite number, limits included."""
        check = lambda value: _is_number(value) and low <= value <= high  # noqa: E731
        value: float | None = self.take(key, check, f"a number from {low:g} to {high:g}")
        return value

    def numbers(self, key: str, *, nonzero: bool = False, each: str = "colour channel") -> tuple[float, ...] | None:
        """One finite number or a list of them.

        Args:
            nonzero: refuse 0, by which something is divided.
            each: what each number is for, in words.
        """

        def check(value: Any) -> bool:
            items = value if isinstance(value, list) else [value]
            return bool(items) and all(_is_number(item) and (item or not nonzero) for item in items)

        value = self.take(key, check, f"numbers, one per {each}" + (" and none of them 0" if nonzero else ""))
        if value is None:
            return None
        return tuple(float(item) for item in (value if isinstance(value, list) else [value]))

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value: bool | None = self.take(key, lambda value: isinstance(value, bool), "true or false")
        return value

    def relative_path(self, key: str) -> str | None:
        """A path below the model's folder, see :func:`is_contained_name`."""
        value: str | None = self.take(key, is_contained_name, "a path inside the model's folder")
        return value

    def table(self, key: str) -> Table:
        """A table within; an empty one where there is none."""
        value = self.take(key, lambda value: isinstance(value, dict), "a table")
        return Table(value or {}, self._file, f"{self._prefix}{key}.")

    def optional_table(self, key: str) -> Table | None:
        """A table within."""
        value = self.take(key, lambda value: isinstance(value, dict), "a table")
        return None if value is None else Table(value, self._file, f"{self._prefix}{key}.")

    def tables(self, key: str) -> list[Table]:
        """A list of tables within; empty where there is none."""
        check = lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value)  # noqa: E731
        values = self.take(key, check, f"a list of tables ([[{key}]])") or []
        return [Table(value, self._file, f"{self._prefix}{key}[{index}].") for index, value in enumerate(values)]

    def named_tables(self, key: str) -> dict[str, Table]:
        """A table of tables, by names that the owner chooses."""
        inner = self.table(key)
        return {name: inner.table(name) for name in list(inner._left)}

    def left(self) -> list[str]:
        """The keys that nobody has taken yet."""
        return list(self._left)

    def rest(self) -> dict[str, Any]:
        """Take all that is left, unchecked."""
        rest, self._left = self._left, {}
        return rest

    def refuse_rest(self) -> None:
        """Refuse keys that nobody has taken.

        Raises:
            ManifestError: there are some; it names the closest known one.
        """
        for key in self._left:
            from difflib import get_close_matches  # late: only those who mistype need it

            close = get_close_matches(key, self._known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(self._known)}"
            raise ManifestError(f"{self._file}: unknown key {self._prefix}{key}; {hint}")


def is_contained_name(value: object) -> bool:
    """Return whether a manifest's path is relative and stays below its folder as written (links are checked later).

    Longer ones than systems have are none: whoever looks for such a file gets an error, not "it is not there".
    """
    if not isinstance(value, str) or not value or "\0" in value or "\\" in value or value.startswith("/"):
        return False
    parts = value.split("/")
    return ".." not in parts and max(map(_bytes, parts)) <= MAX_NAME_BYTES and _bytes(value) <= MAX_PATH_BYTES


def _bytes(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _is_number(value: Any) -> bool:
    # Bounded so that it fits a float32; NaN and infinities fail the comparison.
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e30 <= value <= 1e30


def _show(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # TOML reads hexadecimal integers of any length; Python prints 4300 digits at most
        return "a number of over 4300 digits"
