"""SentencePiece tokenization.

A text becomes its likeliest pieces (unigram), pieces merged pair by pair (BPE), words or
characters. For n characters the cost is n times the number of different piece lengths
(unigram), n log n (BPE) or n.

Written in Python because the library is C++, which a phone would have to compile. Scores
are added in single precision, as the library does: rounding decides between two equally
good ways to split a text.
"""

from __future__ import annotations

import heapq
import itertools
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from pocketserve.tasks.cancellation import enumerate_cancellable
from pocketserve.tasks.text.charsmap import SPACE, Normalizer, lengths_by_first
from pocketserve.tasks.text.sentencepiece_model import (
    ModelKind,
    PieceType,
    SentencePieceError,
    SentencePieceModel,
)
from pocketserve.tasks.text.tokens import Special, Token

# An unknown character scores this much less than the rarest piece.
UNKNOWN_PENALTY = 10.0
# Positions between two checkpoints; each looks up as many as 128 pieces.
POSITION_INTERVAL = 256
_FLOAT = struct.Struct("<f")
_WORD = re.compile(f".[^{SPACE}]*", re.DOTALL)
Piece = tuple[int, int, int]  # number, start and end in a segment
# Negative score, start of the left symbol, start of the right one, and its end.
_MergeCandidate = tuple[float, int, int, int]


class SentencePiece:
    """Tokenize texts with a ``.model`` file.

    Args:
        lower_case: lower-case the text first.

    Raises:
        SentencePieceError: the model lacks a part that it declares.
    """

    def __init__(
        self, model: SentencePieceModel, special: Special, *, lower_case: bool = False
    ) -> None:
        self.special = special
        self.model = model
        self._lower = lower_case
        self._unused = frozenset(model.numbers_of(PieceType.UNUSED))
        numbers = _usable_numbers(model)
        self._normalizer = Normalizer(model, apart=_words_are_apart(model, numbers))
        if model.kind is ModelKind.UNIGRAM:
            # The library never returns an unused piece; only BPE merges through it.
            for number in self._unused:
                numbers.pop(model.pieces[number], None)
        self._numbers = numbers
        self._lengths = lengths_by_first([*numbers])
        self._bytes = _byte_numbers(model) if model.byte_fallback else ()
        normal = [model.scores[n] for n in model.numbers_of(PieceType.NORMAL)]
        self._unknown_score = min(normal, default=0.0) - UNKNOWN_PENALTY
        best = max(normal, default=0.0)
        self._user_scores = _user_defined_scores(model, best)

    def tokens(self, text: str) -> Iterator[Token]:
        if self._lower:
            text = _lower_case(text)
        unknown: Token | None = None  # consecutive unknown pieces become one
        score = 0.0
        for segment in self._normalizer.segments(text):
            pieces, score = self._split_segment(segment.text, score)
            for number, first, last in pieces:
                start = segment.starts[first]
                end = segment.end
                if last < len(segment.starts):
                    end = segment.starts[last]
                if number != self.model.unknown:
                    if unknown is not None:
                        yield unknown
                        unknown = None
                    yield Token(number, start, end)
                elif self._bytes:
                    yield from self._byte_tokens(segment.text[first:last], start, end)
                elif unknown is None:
                    unknown = Token(number, start, end)
                else:
                    unknown = Token(number, unknown.start, end)
        if unknown is not None:
            yield unknown

    def _byte_tokens(self, text: str, start: int, end: int) -> Iterator[Token]:
        """Yield a token per UTF-8 byte.

        Only the last one covers the range.
        """
        encoded = text.encode()
        for byte in encoded[:-1]:
            yield Token(self._bytes[byte], start, start)
        yield Token(self._bytes[encoded[-1]], start, end)

    def _split_segment(self, text: str, before: float) -> tuple[list[Piece], float]:
        """Return a segment's pieces and the sum of all scores so far."""
        kind = self.model.kind
        if kind is ModelKind.UNIGRAM:
            return self._likeliest(text, before)
        if kind is ModelKind.BPE:
            return self._merged(text), before
        if kind is ModelKind.WORD:
            # A word starts at a space, even if the model puts spaces behind words.
            ranges: Iterator[tuple[int, int]] = (m.span() for m in _WORD.finditer(text))
        else:
            ranges = self._symbols(text)
        return self._pieces_at(text, ranges), before

    def _pieces_at(self, text: str, ranges: Iterator[tuple[int, int]]) -> list[Piece]:
        unknown = self.model.unknown
        pieces = []
        for _, (start, end) in enumerate_cancellable(ranges):
            number = self._numbers.get(text[start:end], unknown)
            pieces.append((number, start, end))
        return pieces

    def _symbols(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the ranges of single characters and user-defined pieces."""
        at = 0
        longest = self._normalizer.user_defined.longest
        while at < len(text):
            end = at + (longest(text, at) or 1)
            yield at, end
            at = end

    def _likeliest(self, text: str, before: float) -> tuple[list[Piece], float]:
        """Return the pieces with the highest total score (Viterbi), and that total.

        The total continues the sum of the previous segments, whose size affects rounding.
        """
        size = len(text)
        sums: list[float | None] = [before, *[None] * size]
        origins = [0] * (size + 1)
        numbers = [self.model.unknown] * (size + 1)
        scores = self.model.scores
        user_scores = self._user_scores
        piece_numbers = self._numbers

        for start, first in enumerate_cancellable(text, POSITION_INTERVAL):
            start_sum = sums[start]
            # Each character is a piece or unknown, so every position is reached.
            assert start_sum is not None
            has_single = False
            for length in self._lengths.get(first, ()):
                end = start + length
                number = piece_numbers.get(text[start:end], -1)
                if number < 0 or end > size:
                    continue
                has_single = has_single or length == 1
                score = user_scores.get(number)
                if score is None:
                    score = scores[number]
                total = start_sum + score
                best = sums[end]
                if best is None or total > best:
                    sums[end] = _single(total)
                    origins[end] = start
                    numbers[end] = number
            if not has_single:
                self._add_unknown(start, sums, origins, numbers)
        return _backtrack(origins, numbers), sums[size] or 0.0

    def _add_unknown(
        self,
        start: int,
        sums: list[float | None],
        origins: list[int],
        numbers: list[int],
    ) -> None:
        """Take a character as unknown if nothing better ends behind it."""
        start_sum = sums[start]
        assert start_sum is not None
        total = _single(start_sum + self._unknown_score)
        best = sums[start + 1]
        if best is None or total > best:
            sums[start + 1] = total
            origins[start + 1] = start
            numbers[start + 1] = self.model.unknown

    def _merged(self, text: str) -> list[Piece]:
        """Return the pieces of a text by merging pairs (BPE)."""
        symbols = self._symbols(text)
        merging = _PairMerging(text, self._numbers, self.model.scores, self._unused)
        merging.add_symbols(symbols, self._normalizer.user_defined.texts)
        merging.run()
        pieces: list[Piece] = []
        for _, (start, end) in enumerate_cancellable(merging.ranges()):
            pieces += self._split_unused(text, start, end, merging.halves)
        return pieces

    def _split_unused(
        self, text: str, start: int, end: int, halves: Mapping[str, int]
    ) -> Iterator[Piece]:
        """Yield a merged piece.

        An unused one is split into the two it was merged from.
        """
        half = halves.get(text[start:end])
        if half is None:
            yield self._numbers.get(text[start:end], self.model.unknown), start, end
        else:
            yield from self._split_unused(text, start, start + half, halves)
            yield from self._split_unused(text, start + half, end, halves)


class _PairMerging:
    """Merge adjacent symbols, the pair with the highest score first.

    Attributes:
        halves: for each unused piece, the length of its left part.
    """

    def __init__(
        self,
        text: str,
        numbers: Mapping[str, int],
        scores: Sequence[float],
        unused: Set[int],
    ) -> None:
        self.halves: dict[str, int] = {}
        self._text = text
        self._numbers = numbers
        self._scores = scores
        self._unused = unused
        # The end of the symbol that starts at a position; 0 if none starts there.
        self._ends = [0] * (len(text) + 1)
        # The start of the symbol that ends at a position.
        self._before = [0] * (len(text) + 1)
        self._fixed: set[int] = set()  # starts of user-defined symbols
        self._candidates: list[_MergeCandidate] = []

    def add_symbols(
        self, ranges: Iterator[tuple[int, int]], user_defined: Set[str]
    ) -> None:
        for _, (start, end) in enumerate_cancellable(ranges):
            self._ends[start] = end
            self._before[end] = start
            if end - start > 1 or self._text[start] in user_defined:
                self._fixed.add(start)
            if start:
                self._propose(self._before[start], start)

    def run(self) -> None:
        ends = self._ends
        before = self._before
        for _, candidate in enumerate_cancellable(_drain(self._candidates)):
            _, left, right, end = candidate
            if ends[left] != right or ends[right] != end:
                continue  # outdated: one of the two has been merged meanwhile
            ends[left] = end
            ends[right] = 0
            before[end] = left
            if left:
                self._propose(before[left], left)
            self._propose(left, end)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each symbol."""
        for start in itertools.compress(range(len(self._text)), self._ends):
            yield start, self._ends[start]

    def _propose(self, left: int, right: int) -> None:
        end = self._ends[right]
        piece = self._text[left:end]
        number = self._numbers.get(piece)
        if number is None or left in self._fixed or right in self._fixed:
            return
        candidate = (-self._scores[number], left, right, end)
        heapq.heappush(self._candidates, candidate)
        if number in self._unused:
            self.halves[piece] = right - left


def _usable_numbers(model: SentencePieceModel) -> dict[str, int]:
    """Return the pieces that a text may become."""
    types = [PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.UNUSED]
    if model.kind in (ModelKind.WORD, ModelKind.CHAR):
        # These only look pieces up, so a byte's piece that a text contains is found.
        types.append(PieceType.BYTE)
    return {model.pieces[number]: number for number in model.numbers_of(*types)}


def _user_defined_scores(model: SentencePieceModel, best: float) -> dict[int, float]:
    """Return scores that make user-defined pieces win."""
    scores = {}
    for number in model.numbers_of(PieceType.USER_DEFINED):
        size = len(model.pieces[number].encode())
        scores[number] = _single(size * best) - 0.1
    return scores


def _lower_case(text: str) -> str:
    """Lower-case each character that stays one character."""
    chars = []
    for _, char in enumerate_cancellable(text):
        lower = char.lower()
        chars.append(lower if len(lower) == 1 else char)
    return "".join(chars)


def _backtrack(origins: Sequence[int], numbers: Sequence[int]) -> list[Piece]:
    """Return the best path's pieces, from the first to the last."""
    pieces: list[Piece] = []
    end = len(origins) - 1
    while end > 0:
        pieces.append((numbers[end], origins[end], end))
        end = origins[end]
    pieces.reverse()
    return pieces


def _drain(heap: list[_MergeCandidate]) -> Iterator[_MergeCandidate]:
    """Pop items until the heap is empty.

    More may be pushed meanwhile.
    """
    while heap:
        yield heapq.heappop(heap)


def _words_are_apart(model: SentencePieceModel, pieces: Iterable[str]) -> bool:
    """Return whether words can be split independently: no piece spans a space."""
    if model.kind is ModelKind.WORD:
        return True
    if model.whitespace_behind or not model.escape_whitespaces:
        return False
    if PieceType.UNUSED in model.types:
        return False
    return not any(SPACE in piece.lstrip(SPACE) or " " in piece for piece in pieces)


def _byte_numbers(model: SentencePieceModel) -> tuple[int, ...]:
    by_piece = {}
    for number in model.numbers_of(PieceType.BYTE):
        by_piece[model.pieces[number]] = number
    numbers = [by_piece.get(f"<0x{byte:02X}>") for byte in range(256)]
    present = [number for number in numbers if number is not None]
    if len(by_piece) != 256 or len(present) != 256:
        raise SentencePieceError(
            "unknown characters should become bytes, but some bytes have no piece"
        )
    return tuple(present)


def _single(value: float) -> float:
    """Round to single precision."""
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        if value > 0:
            return float("inf")
        return float("-inf")
    return rounded
