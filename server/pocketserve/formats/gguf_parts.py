"""Names of the files of a GGUF model in several parts.

llama.cpp's ``llama-gguf-split`` names them ``NAME-00001-of-00003.gguf``, and its loader
finds the others by the first one's name. Source: ggml-org/llama.cpp, src/llama.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

SUFFIX: Final = ".gguf"
MAX_PARTS: Final = 512
_NAME: Final = re.compile(
    r"(?P<stem>.{1,200})-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf"
)


@dataclass(frozen=True)
class GgufPart:
    """The name of a part; the first one has the number 1."""

    stem: str
    number: int
    total: int

    def name_of(self, number: int) -> str:
        """Return the name of another part."""
        return f"{self.stem}-{number:05}-of-{self.total:05}{SUFFIX}"


def part_of(file_name: str) -> GgufPart | None:
    """Parse the name of a part; None for other names."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    part = GgufPart(match["stem"], int(match["number"]), int(match["count"]))
    if not 1 <= part.number <= part.total <= MAX_PARTS:
        return None
    return part


def later_parts(file_name: str) -> list[str]:
    """Return the names of the parts after the first; empty for other names."""
    part = part_of(file_name)
    if part is None or part.number != 1:
        return []
    return [part.name_of(number) for number in range(2, part.total + 1)]


def first_part(file_name: str) -> str | None:
    """Return the name of a later part's first part; None for other names."""
    part = part_of(file_name)
    if part is None or part.number == 1:
        return None
    return part.name_of(1)
