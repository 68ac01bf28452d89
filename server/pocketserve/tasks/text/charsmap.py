"""Normalisation as SentencePiece does it: compiled rules (NFKC and the like), and spaces.

The rules lie in the ``.model`` file as a double-array trie over UTF-8 (the format of darts-clone) and a pool of
replacements that end with a zero byte. It is walked as it is, for each text: what is in it need not be a tree.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.cancellation import CHECK_INTERVAL, checkpoint
from pocketserve.tasks.text.sentencepiece_model import PieceType, SentencePieceError, SentencePieceModel

SPACE = "\u2581"
MAX_RULE_CHARS = 32
"""Of what a rule replaces. Unicode's longest composition has six."""

MAX_REPLACEMENT_BYTES = 256
"""Unicode's longest has 33."""

MAX_NORMALIZED = 1 << 20
"""Characters of a text after normalisation: a rule may make dozens of one."""

MAX_ALONE = MAX_KEPT = 1 << 16
"""Characters and replacements that are remembered; Unicode's rules have some thousand."""

LONE_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class Segment:
    """A piece of a normalised text that can be cut into tokens by itself.

    Attributes:
        text: its characters.
        starts: the place in the original text of what each came from.
        end: the place of what comes next.
    """

    text: str
    starts: list[int] = field(default_factory=list)
    end: int = 0


class CharsMap:
    """Replaces the longest rule's match at each place.

    Args:
        blob: the size of the trie in bytes, the trie, the replacements; empty for no rules.

    Raises:
        SentencePieceError: the sizes do not fit.
    """

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        if blob and (len(blob) < 8 or size % 4 or not 4 <= size < len(blob) - 3):
            raise SentencePieceError("its rules of normalisation are damaged")
        self._units = array("I", blob[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._pool = blob[4 + size :]
        self._texts: dict[int, str] = {}
        self._alone: set[str] = set()  # characters that begin no rule

    def longest(self, text: str, at: int) -> tuple[str, int]:
        """Return what stands for the text at a place, and how many of its characters that is."""
        first = text[at]
        if first in self._alone or not self._units:
            return first, 1
        found, length = -1, 1
        place = _offset(self._units[0])
        for index in range(at, min(len(text), at + MAX_RULE_CHARS)):
            place, value = self._step(place, text[index].encode())
            if place < 0:
                if index == at and len(self._alone) < MAX_ALONE:
                    self._alone.add(first)
                break
            if value >= 0:
                found, length = value, index - at + 1
        return (first, 1) if found < 0 else (self._text(found), length)

    def _step(self, place: int, encoded: bytes) -> tuple[int, int]:
        """From a node along one character: the next node, -1 for none, and the rule that ends there, or -1."""
        units = self._units
        leaf = False
        for byte in encoded:
            place ^= byte
            if place >= len(units):
                return -1, -1
            unit = units[place]
            if unit & 0x800000FF != byte:
                return -1, -1
            place ^= _offset(unit)
            leaf = bool(unit >> 8 & 1)
        return place, units[place] & 0x7FFFFFFF if leaf and place < len(units) else -1

    def _text(self, value: int) -> str:
        known = self._texts.get(value)
        if known is None:
            end = self._pool.find(b"\0", value, value + MAX_REPLACEMENT_BYTES)
            raw = self._pool[value : value + MAX_REPLACEMENT_BYTES if end < 0 else end]
            known = raw.decode("utf-8", errors="replace")
            if len(self._texts) < MAX_KEPT:
                self._texts[value] = known
        return known


class Normalizer:
    """A model's normalisation: rules, spaces, and what the model's owner wants left alone.

    Args:
        apart: a space behind anything else begins a new segment: no piece has one in it.
    """

    def __init__(self, model: SentencePieceModel, *, apart: bool) -> None:
        self._map = CharsMap(model.charsmap)
        self._space = SPACE if model.escape_whitespaces else " "
        self._extra = model.remove_extra_whitespaces
        self._before = model.add_dummy_prefix and not model.whitespace_behind
        self._behind = model.add_dummy_prefix and model.whitespace_behind
        self._apart = apart
        self.kept = PrefixMatcher(
            [p for p, t in zip(model.pieces, model.types, strict=True) if t == PieceType.USER_DEFINED]
        )

    def segments(self, text: str) -> Iterator[Segment]:
        """The normalised text in pieces, one after the other.

        Raises:
            ApiError: INVALID_INPUT, it becomes too long.
        """
        text = LONE_SURROGATES.sub("\ufffd", text)
        at = self._leading(text) if self._extra else 0
        if at == len(text):
            return
        chars: list[str] = []
        starts: list[int] = []
        if self._before:
            chars.append(self._space)
            starts.append(at)
        after_space = self._extra
        total = 0
        asked = at
        while at < len(text):
            if at >= asked:
                checkpoint()
                asked = at + CHECK_INTERVAL
            given, length = self._unit(text, at)
            if after_space:
                given = given.lstrip(" ")
            total += len(given)
            if total > MAX_NORMALIZED:
                raise invalid_input(f"the text has more than {MAX_NORMALIZED} characters once it is normalised")
            for char in given:
                shown = self._space if char == " " else char
                if self._apart and shown == SPACE and chars and chars[-1] != SPACE:
                    yield Segment("".join(chars), starts, at)
                    chars, starts = [], []
                chars.append(shown)
                starts.append(at)
            if given:
                after_space = self._extra and given.endswith(" ")
            at += length
        yield from self._last(chars, starts, at)

    def _last(self, chars: list[str], starts: list[int], end: int) -> Iterator[Segment]:
        while self._extra and chars and chars[-1] == self._space:
            chars.pop()
            end = starts.pop()
        if self._behind:
            chars.append(self._space)
            starts.append(end)
        if chars:
            yield Segment("".join(chars), starts, end)

    def _leading(self, text: str) -> int:
        """Return where the first thing stands that is no space."""
        at = asked = 0
        while at < len(text):
            if at >= asked:
                checkpoint()
                asked = at + CHECK_INTERVAL
            given, length = self._unit(text, at)
            if given != " ":
                break
            at += length
        return at

    def _unit(self, text: str, at: int) -> tuple[str, int]:
        kept = self.kept.longest(text, at)
        return (text[at : at + kept], kept) if kept else self._map.longest(text, at)


class PrefixMatcher:
    """Finds the longest of some texts at a place."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = frozenset(texts)
        self._lengths = lengths_by_first(texts)

    def longest(self, text: str, at: int) -> int:
        """Its length; 0 where there is none."""
        for length in reversed(self._lengths.get(text[at], ())):
            if at + length <= len(text) and text[at : at + length] in self._texts:
                return length
        return 0


def lengths_by_first(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return which lengths the texts with the same first character have, shortest first."""
    found: dict[str, set[int]] = {}
    for text in texts:
        found.setdefault(text[0], set()).add(len(text))
    return {first: tuple(sorted(lengths)) for first, lengths in found.items()}


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)
