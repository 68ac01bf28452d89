"""What a section is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pocketserve.repository.toml_table import Table
from pocketserve_wire.records import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """One table of a manifest.

    Attributes:
        kind: the class of its options; ``kind()`` holds the defaults.
        parse: reads the options; keys that it leaves are refused by the caller as misspelt.
    """

    kind: type
    parse: Callable[[Table], Any]
