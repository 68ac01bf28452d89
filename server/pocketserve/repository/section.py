"""What a section is: a table of a manifest that belongs to tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pocketserve.repository.toml_table import Table
from pocketserve_wire.records import dataclass

Options = TypeVar("Options")


def _no_files(_options: Any) -> Iterable[str | None]:
    return ()


@dataclass(frozen=True, slots=True)
class Section:
    """One table of a manifest.

    Attributes:
        name: of the table.
        options: the class of its options; ``options()`` holds the defaults.
        parse: reads the options; keys that it leaves are refused by the caller as misspelt.
        files: names the files beside the model that the options speak of.
    """

    name: str
    options: type
    parse: Callable[[Table], Any]
    files: Callable[[Any], Iterable[str | None]] = _no_files


def with_defaults(options: type[Options], **values: Any) -> Options:
    """Return options; those that are None or empty keep their defaults."""
    given = {key: value for key, value in values.items() if value not in (None, "")}
    return dataclasses.replace(options(), **given)  # type: ignore[type-var]
