"""Normalisation as SentencePiece does it: compiled rules (NFKC and the like), and spaces.

The rules lie in the ``.model`` file as a double-array trie over UTF-8 (the format of darts-clone) and a pool of
replacements that end with a zero byte. It is walked as it is, for each text: what is in it need not be a tree.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.cancellation import CHECK_INTERVAL, checkpoint
from pocketserve.tasks.text.sentencepiece_model import (
    PieceType,
    SentencePieceError,
    SentencePieceModel,
)

SPACE = "\u2581"
MAX_RULE_CHARS = 32  # of what a rule replaces; Unicode's longest composition has six
MAX_REPLACEMENT_BYTES = 256  # Unicode's longest has 33
MAX_NORMALIZED = (
    1 << 20
)  # characters of a text after normalisation: a rule may make dozens of one
MAX_WITHOUT_RULE = (
    1 << 16
)  # characters that are remembered; Unicode's rules have some thousand
LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Segment(NamedTuple):
    """A piece of a normalised text that can be cut into tokens by itself."""

    text: str
    starts: list[int]  # the position in the original text that each character came from
    end: int  # the position of what comes next


class CharsMap:
    """Replaces the longest rule's match at a position.

    The rules are the size of the trie in bytes, the trie, and the replacements; or nothing.
    """

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        if blob and (len(blob) < 8 or size % 4 or not 4 <= size < len(blob) - 3):
            raise SentencePieceError("its rules of normalisation are damaged")
        self._units = array("I", blob[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._pool = blob[4 + size :]
        self._without_rule: set[str] = set()

    def longest(self, text: str, at: int) -> tuple[str, int]:
        """Return the replacement of the text at a position, and how many of its characters it replaces."""
        first = text[at]
        if first in self._without_rule or not self._units:
            return first, 1
        rule, length = -1, 1
        node = _offset(self._units[0])
        for index in range(at, min(len(text), at + MAX_RULE_CHARS)):
            node, value = self._step(node, text[index].encode())
            if node < 0:
                if index == at and len(self._without_rule) < MAX_WITHOUT_RULE:
                    self._without_rule.add(first)
                break
            if value >= 0:
                rule, length = value, index - at + 1
        if rule < 0:
            return first, 1
        end = self._pool.find(b"\0", rule, rule + MAX_REPLACEMENT_BYTES)
        raw = self._pool[rule : rule + MAX_REPLACEMENT_BYTES if end < 0 else end]
        return raw.decode("utf-8", errors="replace"), length

    def _step(self, node: int, encoded: bytes) -> tuple[int, int]:
        """Return the next node along one character, -1 for none, and the rule that ends there, or -1."""
        units = self._units
        leaf = False
        for byte in encoded:
            node ^= byte
            if node >= len(units):
                return -1, -1
            unit = units[node]
            if unit & 0x800000FF != byte:
                return -1, -1
            node ^= _offset(unit)
            leaf = bool(unit >> 8 & 1)
        return node, units[node] & 0x7FFFFFFF if leaf and node < len(units) else -1


class Normalizer:
    """A model's normalisation: rules, spaces, and pieces of the model's owner that it leaves alone.

    Args:
        apart: a space behind anything else begins a new segment: no piece has one in it.
    """

    def __init__(self, model: SentencePieceModel, *, apart: bool) -> None:
        self._map = CharsMap(model.charsmap)
        self._space = SPACE if model.escape_whitespaces else " "
        self._trim = model.remove_extra_whitespaces
        self._before = model.add_dummy_prefix and not model.whitespace_behind
        self._behind = model.add_dummy_prefix and model.whitespace_behind
        self._apart = apart
        self.user_defined = PrefixMatcher(
            [
                p
                for p, t in zip(model.pieces, model.types, strict=True)
                if t == PieceType.USER_DEFINED
            ]
        )

    def segments(self, text: str) -> Iterator[Segment]:
        """Yield the normalised text in segments; INVALID_INPUT once it becomes too long."""
        text = LONE_SURROGATES.sub("\ufffd", text)
        chars: list[str] = []
        starts: list[int] = []
        leading, after_space = True, self._trim
        total = 0
        for at, part in self._units(text):
            if leading:
                if self._trim and part == " ":
                    continue
                leading = False
                if self._before:
                    chars.append(self._space)
                    starts.append(at)
            if after_space:
                part = part.lstrip(" ")
            total += len(part)
            if total > MAX_NORMALIZED:
                raise invalid_input(
                    f"the text has more than {MAX_NORMALIZED} characters once it is normalised"
                )
            for char in part:
                char = self._space if char == " " else char
                if self._apart and char == SPACE and chars and chars[-1] != SPACE:
                    yield Segment("".join(chars), starts, at)
                    chars, starts = [], []
                chars.append(char)
                starts.append(at)
            if part:
                after_space = self._trim and part.endswith(" ")
        end = len(text)
        while self._trim and chars and chars[-1] == self._space:
            chars.pop()
            end = starts.pop()
        if self._behind and not leading:
            chars.append(self._space)
            starts.append(end)
        if chars:
            yield Segment("".join(chars), starts, end)

    def _units(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the positions of what is replaced as a whole, and the replacements."""
        at = next_check = 0
        while at < len(text):
            if at >= next_check:
                checkpoint()
                next_check = at + CHECK_INTERVAL
            length = (
                self.user_defined.longest(text, at) if self.user_defined.texts else 0
            )
            part, length = (
                (text[at : at + length], length)
                if length
                else self._map.longest(text, at)
            )
            yield at, part
            at += length


class PrefixMatcher:
    """Finds the longest of some texts at a position."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = frozenset(texts)
        self._lengths = lengths_by_first(texts)

    def longest(self, text: str, at: int) -> int:
        """Return the match's length; 0 where there is none."""
        for length in reversed(self._lengths.get(text[at], ())):
            if at + length <= len(text) and text[at : at + length] in self.texts:
                return length
        return 0


def lengths_by_first(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the lengths of the texts with the same first character, shortest first."""
    lengths: dict[str, set[int]] = {}
    for text in texts:
        lengths.setdefault(text[0], set()).add(len(text))
    return {first: tuple(sorted(sizes)) for first, sizes in lengths.items()}


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)
