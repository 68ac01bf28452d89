"""SentencePiece: a text becomes the likeliest pieces (unigram), pieces that are merged pair by pair (BPE), its words
(word) or its characters (char).

A text of n characters costs n times the number of lengths that pieces have (unigram), n log n (BPE) or n.

Written here because the library is C++, which a phone would have to compile. Scores are added in single precision, as
the library does: where two ways to cut a text are as good, that decides.
"""

from __future__ import annotations

import heapq
import itertools
import re
import struct
from collections.abc import Iterable, Iterator, Mapping

from pocketserve.tasks.cancellation import enumerate_cancellable
from pocketserve.tasks.text.charsmap import SPACE, Normalizer, lengths_by_first
from pocketserve.tasks.text.sentencepiece_model import (
    ModelKind,
    PieceType,
    SentencePieceError,
    SentencePieceModel,
)
from pocketserve.tasks.text.tokens import Special, Token

UNKNOWN_PENALTY = (
    10.0  # an unknown character scores this much less than the rarest piece
)
POSITION_INTERVAL = 256  # positions of a text between two checkpoints: at each one up to 128 pieces are looked up
_FLOAT = struct.Struct("<f")
_WORD = re.compile(f".[^{SPACE}]*", re.DOTALL)
Piece = tuple[int, int, int]  # number, first character, behind the last; in a segment
_Candidate = tuple[
    float, int, int, int
]  # less the score; where the left piece begins, the right one, and its end


class SentencePiece:
    """The tokenizer of a ``.model`` file; ``lower_case`` makes letters small before anything else.

    Raises:
        SentencePieceError: the model lacks what it says that it has.
    """

    def __init__(
        self, model: SentencePieceModel, special: Special, *, lower_case: bool = False
    ) -> None:
        self.special = special
        self.model = model
        self._lower = lower_case
        usable = {PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.UNUSED}
        if model.kind in (ModelKind.WORD, ModelKind.CHAR):
            usable.add(
                PieceType.BYTE
            )  # these only look pieces up: one that is spelled out in a text is found
        numbers = {
            p: n
            for n, (p, t) in enumerate(zip(model.pieces, model.types, strict=True))
            if t in usable
        }
        self._normalizer = Normalizer(model, apart=_words_are_apart(model, numbers))
        # The library never gives an unused piece, but merges by it on the way.
        self._unused = frozenset(
            n for n, kind in enumerate(model.types) if kind == PieceType.UNUSED
        )
        if model.kind is ModelKind.UNIGRAM:
            numbers = {
                piece: number
                for piece, number in numbers.items()
                if number not in self._unused
            }
        self._numbers = numbers
        self._lengths = lengths_by_first([*numbers])
        self._bytes = _byte_numbers(model) if model.byte_fallback else ()
        normal = [
            s
            for s, t in zip(model.scores, model.types, strict=True)
            if t == PieceType.NORMAL
        ]
        self._unknown_score = min(normal, default=0.0) - UNKNOWN_PENALTY
        # The scores of what the owner defined make sure that it is taken.
        best = max(normal, default=0.0)
        owned = [
            n for n, kind in enumerate(model.types) if kind == PieceType.USER_DEFINED
        ]
        self._owned_scores = {
            n: _single(len(model.pieces[n].encode()) * best) - 0.1 for n in owned
        }

    def tokens(self, text: str) -> Iterator[Token]:
        if self._lower:
            lowered = ((char, char.lower()) for _, char in enumerate_cancellable(text))
            text = "".join(
                lower if len(lower) == 1 else char for char, lower in lowered
            )
        unknown: Token | None = None  # unknown pieces behind each other are one
        score = 0.0
        for segment in self._normalizer.segments(text):
            pieces, score = self._cut(segment.text, score)
            for number, first, behind in pieces:
                start = segment.starts[first]
                end = (
                    segment.starts[behind]
                    if behind < len(segment.starts)
                    else segment.end
                )
                if number != self.model.unknown:
                    if unknown is not None:
                        yield unknown
                        unknown = None
                    yield Token(number, start, end)
                elif (
                    self._bytes
                ):  # the last byte stands for the character, the others for nothing
                    encoded = segment.text[first:behind].encode()
                    for byte in encoded[:-1]:
                        yield Token(self._bytes[byte], start, start)
                    yield Token(self._bytes[encoded[-1]], start, end)
                else:
                    unknown = Token(
                        number, start if unknown is None else unknown.start, end
                    )
        if unknown is not None:
            yield unknown

    def _cut(self, text: str, before: float) -> tuple[list[Piece], float]:
        """Return a segment's pieces, and the sum of the scores that counts for the next one."""
        kind = self.model.kind
        if kind is ModelKind.UNIGRAM:
            return self._likeliest(text, before)
        if kind is ModelKind.BPE:
            return self._merged(text), before
        # Each space begins a word, whatever the model says of where its spaces stand.
        words = (match.span() for match in _WORD.finditer(text))
        ranges = enumerate_cancellable(
            words if kind is ModelKind.WORD else self._symbols(text)
        )
        unknown = self.model.unknown
        return [
            (self._numbers.get(text[start:end], unknown), start, end)
            for _, (start, end) in ranges
        ], before

    def _symbols(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the ranges of characters, and of what the owner defined."""
        at = 0
        longest = self._normalizer.user_defined.longest
        while at < len(text):
            end = at + (longest(text, at) or 1)
            yield at, end
            at = end

    def _likeliest(self, text: str, before: float) -> tuple[list[Piece], float]:
        """Return the pieces whose scores have the highest sum (Viterbi), and that sum, added to that of the segments
        before, which decides how sums are rounded.
        """
        size = len(text)
        sums: list[float | None] = [before, *[None] * size]
        origins, numbers = [0] * (size + 1), [self.model.unknown] * (size + 1)
        scores, owned, known_pieces = (
            self.model.scores,
            self._owned_scores,
            self._numbers,
        )

        for start, first in enumerate_cancellable(text, POSITION_INTERVAL):
            start_sum = sums[start]
            assert (
                start_sum is not None
            )  # every character is a piece or unknown, so that every position is reached
            alone = False
            for length in self._lengths.get(first, ()):
                end = start + length
                number = known_pieces.get(text[start:end], -1)
                if number < 0 or end > size:
                    continue
                alone = alone or length == 1
                total = start_sum + (
                    owned[number] if number in owned else scores[number]
                )
                best = sums[end]
                if best is None or total > best:
                    sums[end], origins[end], numbers[end] = (
                        _single(total),
                        start,
                        number,
                    )
            total = _single(start_sum + self._unknown_score)
            best = sums[start + 1]
            if not alone and (best is None or total > best):
                sums[start + 1], origins[start + 1], numbers[start + 1] = (
                    total,
                    start,
                    self.model.unknown,
                )
        pieces: list[Piece] = []
        end = size
        while end > 0:
            pieces.append((numbers[end], origins[end], end))
            end = origins[end]
        return pieces[::-1], sums[size] or 0.0

    def _merged(self, text: str) -> list[Piece]:
        """Merge neighbours, those first that make the piece with the highest score, from the left."""
        numbers, scores, unused = self._numbers, self.model.scores, self._unused
        user_defined = self._normalizer.user_defined.texts
        ends = [0] * (len(text) + 1)  # of symbols by their starts; 0 where none starts
        before = [0] * (len(text) + 1)  # the start of the symbol in front
        owned: set[int] = set()
        halves: dict[str, int] = {}  # of unused pieces: the length of the left one
        agenda: list[_Candidate] = []

        def propose(left: int, right: int) -> None:
            piece = text[left : ends[right]]
            number = numbers.get(piece)
            if number is None or left in owned or right in owned:
                return
            heapq.heappush(agenda, (-scores[number], left, right, ends[right]))
            if number in unused:
                halves[piece] = right - left

        for _, (start, end) in enumerate_cancellable(self._symbols(text)):
            ends[start], before[end] = end, start
            if end - start > 1 or text[start] in user_defined:
                owned.add(start)
            if start:
                propose(before[start], start)
        for _, (_, left, right, end) in enumerate_cancellable(_drain(agenda)):
            if ends[left] == right and ends[right] == end:
                ends[left], ends[right], before[end] = end, 0, left
                if left:
                    propose(before[left], left)
                propose(left, end)
        starts = enumerate_cancellable(itertools.compress(range(len(text)), ends))
        return [
            piece
            for _, start in starts
            for piece in self._split(text, start, ends[start], halves)
        ]

    def _split(
        self, text: str, start: int, end: int, halves: Mapping[str, int]
    ) -> Iterator[Piece]:
        """Yield a merged piece; of an unused one the two that it was merged from."""
        half = halves.get(text[start:end])
        if half is None:
            yield self._numbers.get(text[start:end], self.model.unknown), start, end
        else:
            yield from self._split(text, start, start + half, halves)
            yield from self._split(text, start + half, end, halves)


def _drain(heap: list[_Candidate]) -> Iterator[_Candidate]:
    """Yield the least item, and so on until none is left; others may be pushed meanwhile."""
    while heap:
        yield heapq.heappop(heap)


def _words_are_apart(model: SentencePieceModel, pieces: Iterable[str]) -> bool:
    """Return whether each word can be cut by itself: no piece has a space behind anything else."""
    if model.kind is ModelKind.WORD:
        return True
    if (
        model.whitespace_behind
        or not model.escape_whitespaces
        or PieceType.UNUSED in model.types
    ):
        return False
    return not any(SPACE in piece.lstrip(SPACE) or " " in piece for piece in pieces)


def _byte_numbers(model: SentencePieceModel) -> tuple[int, ...]:
    numbers = {
        model.pieces[n]: n
        for n, kind in enumerate(model.types)
        if kind == PieceType.BYTE
    }
    if len(numbers) != 256 or any(
        f"<0x{byte:02X}>" not in numbers for byte in range(256)
    ):
        raise SentencePieceError(
            "it says that unknown characters become bytes, but has no piece for each byte"
        )
    return tuple(numbers[f"<0x{byte:02X}>"] for byte in range(256))


def _single(value: float) -> float:
    """Round to single precision."""
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded
