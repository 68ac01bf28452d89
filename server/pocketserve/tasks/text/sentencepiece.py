"""SentencePiece: a text becomes the likeliest pieces (unigram), pieces that are merged pair by pair (BPE), its words
(word) or its characters (char).

A text of n characters costs n times the number of lengths that pieces have (unigram), n log n (BPE) or n; what runs
long asks on the way whether anybody still wants it.

Written here because the library is C++, which a phone would have to compile. Scores are added in single precision, as
the library does: where two ways to cut a text are as good, that decides.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Iterable, Iterator

from pocketserve.tasks.cancellation import CHECK_INTERVAL, checkpoint, enumerate_cancellable
from pocketserve.tasks.text.charsmap import SPACE, Normalizer, Segment, lengths_by_first
from pocketserve.tasks.text.sentencepiece_model import ModelKind, PieceType, SentencePieceError, SentencePieceModel
from pocketserve.tasks.text.tokens import Special, Token

UNKNOWN_PENALTY = 10.0
"""An unknown character scores this much less than the rarest piece."""

POSITION_INTERVAL = 256
"""Places of a text between two questions: at each one up to 128 pieces are looked up."""

_FLOAT = struct.Struct("<f")
Piece = tuple[int, int, int]
"""Number, first character, behind the last; in a segment."""


class SentencePiece:
    """The tokenizer of a ``.model`` file.

    Args:
        special: what the model wants around a text.
        lower_case: letters become small before anything else.

    Attributes:
        pieces: how many there are.

    Raises:
        SentencePieceError: the model lacks what it says that it has.
    """

    def __init__(self, model: SentencePieceModel, special: Special, *, lower_case: bool = False) -> None:
        self.special = special
        self.pieces = len(model.pieces)
        self._model = model
        self._lower = lower_case
        usable = {PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.UNUSED}
        if model.kind in (ModelKind.WORD, ModelKind.CHAR):
            usable.add(PieceType.BYTE)  # these only look pieces up: one that is spelled out in a text is found
        numbered = [(p, n) for n, (p, t) in enumerate(zip(model.pieces, model.types, strict=True)) if t in usable]
        # The library never gives an unused piece, but merges by it on the way.
        self._unused = frozenset(number for _, number in numbered if model.types[number] == PieceType.UNUSED)
        likeliest = model.kind is ModelKind.UNIGRAM
        wanted = [pair for pair in numbered if pair[1] not in self._unused] if likeliest else numbered
        self._numbers = dict(wanted)
        self._lengths = lengths_by_first([piece for piece, _ in wanted])
        self._bytes = _byte_numbers(model) if model.byte_fallback else ()
        self._normalizer = Normalizer(model, apart=_words_are_apart(model, [piece for piece, _ in numbered]))
        normal = [s for s, t in zip(model.scores, model.types, strict=True) if t == PieceType.NORMAL]
        self._unknown_score = min(normal, default=0.0) - UNKNOWN_PENALTY
        self._kept_scores = _kept_scores(model, max(normal, default=0.0))

    def tokens(self, text: str) -> Iterator[Token]:
        """See :class:`~pocketserve.tasks.text.tokens.Tokenizer`. The text is read only as far as tokens are asked for.

        Raises:
            ApiError: INVALID_INPUT, the text becomes too long by its normalisation.
        """
        if self._lower:
            text = "".join(char.lower() if len(char.lower()) == 1 else char for _, char in enumerate_cancellable(text))
        waiting: Token | None = None  # an unknown piece: unknown ones behind each other are one
        score = 0.0
        for segment in self._normalizer.segments(text):
            pieces, score = self._cut(segment.text, score)
            for number, first, behind in pieces:
                start = segment.starts[first]
                end = segment.starts[behind] if behind < len(segment.starts) else segment.end
                if number != self._model.unknown:
                    if waiting is not None:
                        yield waiting
                        waiting = None
                    yield Token(number, start, end)
                elif self._bytes:
                    yield from self._in_bytes(segment, first, behind, end)
                else:
                    waiting = Token(number, start if waiting is None else waiting.start, end)
        if waiting is not None:
            yield waiting

    def _cut(self, text: str, before: float) -> tuple[list[Piece], float]:
        """A segment's pieces, and the sum of the scores that counts for the next one."""
        kind = self._model.kind
        if kind is ModelKind.UNIGRAM:
            return self._likeliest(text, before)
        if kind is ModelKind.BPE:
            return self._merged(text), before
        return self._looked_up(text, _words(text) if kind is ModelKind.WORD else self._chars(text)), before

    def _looked_up(self, text: str, places: Iterable[tuple[int, int]]) -> list[Piece]:
        unknown = self._model.unknown
        return [
            (self._numbers.get(text[start:end], unknown), start, end)
            for _, (start, end) in enumerate_cancellable(places)
        ]

    def _chars(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where characters, and what the owner defined, begin and end."""
        behind = 0
        for at, _ in enumerate_cancellable(text):
            if at == behind:
                behind = at + (self._normalizer.kept.longest(text, at) or 1)
                yield at, behind

    def _in_bytes(self, segment: Segment, first: int, behind: int, end: int) -> Iterator[Token]:
        """An unknown character's bytes; the last of them stands for it, the others for nothing."""
        start = segment.starts[first]
        encoded = segment.text[first:behind].encode()
        for byte in encoded[:-1]:
            yield Token(self._bytes[byte], start, start)
        yield Token(self._bytes[encoded[-1]], start, end)

    def _likeliest(self, text: str, before: float) -> tuple[list[Piece], float]:
        """The pieces whose scores have the highest sum (Viterbi), and that sum.

        Args:
            before: the sum of all segments before, which decides how sums are rounded.
        """
        size = len(text)
        sums: list[float | None] = [before, *[None] * size]
        origins, numbers = [0] * (size + 1), [self._model.unknown] * (size + 1)
        scores, kept, known = self._model.scores, self._kept_scores, self._numbers

        for start, first in enumerate_cancellable(text, POSITION_INTERVAL):
            here = sums[start]
            assert here is not None  # every character is a piece or unknown, so that every place is reached
            alone = False
            for length in self._lengths.get(first, ()):
                end = start + length
                number = known.get(text[start:end], -1)
                if number < 0 or end > size:
                    continue
                alone = alone or length == 1
                total = here + (kept[number] if number in kept else scores[number])
                best = sums[end]
                if best is None or total > best:
                    sums[end], origins[end], numbers[end] = _single(total), start, number
            total = _single(here + self._unknown_score)
            best = sums[start + 1]
            if not alone and (best is None or total > best):
                sums[start + 1], origins[start + 1], numbers[start + 1] = total, start, self._model.unknown
        pieces: list[Piece] = []
        end = size
        while end > 0:
            pieces.append((numbers[end], origins[end], end))
            end = origins[end]
        return pieces[::-1], sums[size] or 0.0

    def _merged(self, text: str) -> list[Piece]:
        """Neighbours are merged, those first that make the piece with the highest score, from the left."""
        return _Merge(self._numbers, self._model, self._unused, self._normalizer, text).pieces()


class _Merge:
    """One text's merging."""

    def __init__(
        self,
        numbers: dict[str, int],
        model: SentencePieceModel,
        unused: frozenset[int],
        normalizer: Normalizer,
        text: str,
    ) -> None:
        self._numbers, self._model, self._unused, self._text = numbers, model, unused, text
        self._starts: list[int] = []
        self._ends: list[int] = []  # an end at the start: merged into another
        self._frozen: list[bool] = []
        self._halves: dict[str, int] = {}  # of unused pieces: the length of the left one
        self._agenda: list[tuple[float, int, int, int]] = []
        at = 0
        while at < len(text):
            if len(self._starts) % CHECK_INTERVAL == 0:
                checkpoint()
            kept = normalizer.kept.longest(text, at)
            self._starts.append(at)
            at += kept or 1
            self._ends.append(at)
            self._frozen.append(bool(kept))
        count = len(self._starts)
        self._before, self._behind = list(range(-1, count - 1)), [*range(1, count), -1]

    def pieces(self) -> list[Piece]:
        """The pieces that are left."""
        for index, _ in enumerate_cancellable(self._starts[1:]):
            self._propose(index, index + 1)
        for step in itertools.count():
            if not self._agenda:
                break
            if step % CHECK_INTERVAL == 0:
                checkpoint()
            _, left, right, size = heapq.heappop(self._agenda)
            gone = self._ends[left] == self._starts[left] or self._ends[right] == self._starts[right]
            if gone or self._ends[right] - self._starts[left] != size or self._behind[left] != right:
                continue
            self._ends[left] = self._ends[right]
            self._ends[right] = self._starts[right]
            after = self._behind[left] = self._behind[right]
            if after >= 0:
                self._before[after] = left
            self._propose(self._before[left], left)
            self._propose(left, after)
        found: list[Piece] = []
        index = 0
        while index >= 0:
            if index % CHECK_INTERVAL == 0:
                checkpoint()
            self._give(self._starts[index], self._ends[index], found)
            index = self._behind[index]
        return found

    def _propose(self, left: int, right: int) -> None:
        if left < 0 or right < 0 or self._frozen[left] or self._frozen[right]:
            return
        start, end = self._starts[left], self._ends[right]
        piece = self._text[start:end]
        number = self._numbers.get(piece)
        if number is None:
            return
        heapq.heappush(self._agenda, (-self._model.scores[number], left, right, end - start))
        if number in self._unused:
            self._halves[piece] = self._ends[left] - start

    def _give(self, start: int, end: int, found: list[Piece]) -> None:
        """Add a piece; one that is not used falls back into what it was merged from."""
        piece = self._text[start:end]
        number = self._numbers.get(piece, self._model.unknown)
        half = self._halves.get(piece, 0) if number in self._unused else 0
        if half:
            self._give(start, start + half, found)
            self._give(start + half, end, found)
        else:
            found.append((number, start, end))


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Yield where words begin and end: each space begins one, whatever the model says of where its spaces stand."""
    start = 0
    while start < len(text):
        behind = text.find(SPACE, start + 1)
        end = len(text) if behind < 0 else behind
        yield start, end
        start = end


def _words_are_apart(model: SentencePieceModel, pieces: list[str]) -> bool:
    """Return whether each word can be cut by itself: no piece has a space behind anything else."""
    if model.kind is ModelKind.WORD:
        return True
    if model.whitespace_behind or not model.escape_whitespaces or PieceType.UNUSED in model.types:
        return False
    return not any(SPACE in piece.lstrip(SPACE) for piece in pieces) and not any(" " in piece for piece in pieces)


def _kept_scores(model: SentencePieceModel, best: float) -> dict[int, float]:
    """Scores that make sure that what the owner defined is taken."""
    kept = [n for n, t in enumerate(model.types) if t == PieceType.USER_DEFINED]
    return {n: _single(len(model.pieces[n].encode()) * best) - 0.1 for n in kept}


def _byte_numbers(model: SentencePieceModel) -> tuple[int, ...]:
    numbers = {model.pieces[n]: n for n, t in enumerate(model.types) if t == PieceType.BYTE}
    if len(numbers) != 256 or any(f"<0x{byte:02X}>" not in numbers for byte in range(256)):
        raise SentencePieceError("it says that unknown characters become bytes, but has no piece for each byte")
    return tuple(numbers[f"<0x{byte:02X}>"] for byte in range(256))


def _single(value: float) -> float:
    """Rounded to single precision."""
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded
