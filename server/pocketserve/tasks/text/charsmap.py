"""SentencePiece's normalisation: compiled rules (such as NFKC), and spaces.

The ``.model`` file has the rules as a double-array trie over UTF-8 (the format of
darts-clone) and a pool of zero-terminated replacements. The trie is walked as it is; it
is untrusted and need not be a tree.
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
MAX_RULE_CHARS = 32  # replaced by one rule; Unicode's longest composition has six
MAX_REPLACEMENT_BYTES = 256  # Unicode's longest has 33
# Characters of a normalised text: a rule may turn one into dozens.
MAX_NORMALIZED = 1 << 20
MAX_WITHOUT_RULE = 1 << 16  # cached characters; Unicode's rules have some thousand
_VALUE_BITS = 0x7FFFFFFF
_NO_NODE = -1
_NO_RULE = -1
LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class Segment(NamedTuple):
    """A part of a normalised text that can be tokenized independently.

    Attributes:
        starts: for each character, its position in the original text.
        end: the position after the segment in the original text.
    """

    text: str
    starts: list[int]
    end: int


class CharsMap:
    """Apply the longest matching rule at a position.

    Args:
        blob: the trie's size in bytes, the trie and the replacements; or nothing.
    """

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        if blob:
            fits = 4 <= size < len(blob) - 3
            if len(blob) < 8 or size % 4 or not fits:
                raise SentencePieceError("its rules of normalisation are damaged")
        self._units = array("I", blob[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._pool = blob[4 + size :]
        self._without_rule: set[str] = set()

    def longest(self, text: str, at: int) -> tuple[str, int]:
        """Return the replacement at a position, and the number of characters replaced."""
        first = text[at]
        if first in self._without_rule or not self._units:
            return first, 1
        rule = _NO_RULE
        length = 1
        node = _offset(self._units[0])
        for index in range(at, min(len(text), at + MAX_RULE_CHARS)):
            node, value = self._step(node, text[index].encode())
            if node == _NO_NODE:
                if index == at and len(self._without_rule) < MAX_WITHOUT_RULE:
                    self._without_rule.add(first)
                break
            if value != _NO_RULE:
                rule = value
                length = index - at + 1
        if rule == _NO_RULE:
            return first, 1
        return self._replacement(rule), length

    def _replacement(self, rule: int) -> str:
        limit = rule + MAX_REPLACEMENT_BYTES
        end = self._pool.find(b"\0", rule, limit)
        if end < 0:
            end = limit
        return self._pool[rule:end].decode("utf-8", errors="replace")

    def _step(self, node: int, encoded: bytes) -> tuple[int, int]:
        """Return the next node and the rule ending there.

        Either is -1 if there is none.
        """
        units = self._units
        is_leaf = False
        for byte in encoded:
            node ^= byte
            if node >= len(units):
                return _NO_NODE, _NO_RULE
            unit = units[node]
            if unit & 0x800000FF != byte:
                return _NO_NODE, _NO_RULE
            node ^= _offset(unit)
            is_leaf = bool(unit >> 8 & 1)
        if is_leaf and node < len(units):
            return node, units[node] & _VALUE_BITS
        return node, _NO_RULE


class Normalizer:
    """Apply a model's rules and its treatment of spaces; keep user-defined pieces.

    Args:
        apart: a space after other characters begins a new segment, as no piece spans it.
    """

    def __init__(self, model: SentencePieceModel, *, apart: bool) -> None:
        self._map = CharsMap(model.charsmap)
        self._space = SPACE if model.escape_whitespaces else " "
        self._trim = model.remove_extra_whitespaces
        self._before = model.add_dummy_prefix and not model.whitespace_behind
        self._behind = model.add_dummy_prefix and model.whitespace_behind
        self._apart = apart
        self.user_defined = PrefixMatcher(model.pieces_of(PieceType.USER_DEFINED))

    def segments(self, text: str) -> Iterator[Segment]:
        """Yield the normalised text in segments; INVALID_INPUT if it is too long."""
        text = LONE_SURROGATES.sub("\ufffd", text)
        chars: list[str] = []
        starts: list[int] = []
        is_blank = True
        for at, part in self._trimmed_units(text):
            if is_blank and self._before:
                chars.append(self._space)
                starts.append(at)
            is_blank = False
            for char in part:
                if char == " ":
                    char = self._space
                if self._apart and char == SPACE and chars and chars[-1] != SPACE:
                    yield Segment("".join(chars), starts, at)
                    chars = []
                    starts = []
                chars.append(char)
                starts.append(at)
        end = self._trim_end(chars, starts, len(text))
        if self._behind and not is_blank:
            chars.append(self._space)
            starts.append(end)
        if chars:
            yield Segment("".join(chars), starts, end)

    def _trim_end(self, chars: list[str], starts: list[int], end: int) -> int:
        """Remove spaces at the end if the model does; return the new end."""
        while self._trim and chars and chars[-1] == self._space:
            chars.pop()
            end = starts.pop()
        return end

    def _trimmed_units(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield units without leading and repeated spaces, if the model removes them."""
        is_leading = True
        after_space = self._trim
        total = 0
        for at, part in self._units(text):
            if is_leading and self._trim and part == " ":
                continue
            is_leading = False
            if after_space:
                part = part.lstrip(" ")
            total += len(part)
            if total > MAX_NORMALIZED:
                raise invalid_input(
                    f"the text has more than {MAX_NORMALIZED} characters once it is normalised"
                )
            if part:
                after_space = self._trim and part.endswith(" ")
            yield at, part

    def _units(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield each replaced unit's position and replacement."""
        at = next_check = 0
        while at < len(text):
            if at >= next_check:
                checkpoint()
                next_check = at + CHECK_INTERVAL
            length = 0
            if self.user_defined.texts:
                length = self.user_defined.longest(text, at)
            if length:
                part = text[at : at + length]
            else:
                part, length = self._map.longest(text, at)
            yield at, part
            at += length


class PrefixMatcher:
    """Find the longest of some texts at a position."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = frozenset(texts)
        self._lengths = lengths_by_first(texts)

    def longest(self, text: str, at: int) -> int:
        """Return the match's length, 0 without one."""
        for length in reversed(self._lengths.get(text[at], ())):
            if at + length <= len(text) and text[at : at + length] in self.texts:
                return length
        return 0


def lengths_by_first(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the lengths of texts by first character, shortest first."""
    lengths: dict[str, set[int]] = {}
    for text in texts:
        lengths.setdefault(text[0], set()).add(len(text))
    return {first: tuple(sorted(sizes)) for first, sizes in lengths.items()}


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)
