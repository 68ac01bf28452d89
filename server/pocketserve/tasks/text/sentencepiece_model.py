"""Reads SentencePiece's ``.model`` files: a protocol buffer with the pieces, their scores and how text is normalised.

The file may come from a stranger: sizes are bounded, and what does not follow the format is refused. Only what decides
the tokens is read; field numbers are those of ``sentencepiece_model.proto``.
"""

from __future__ import annotations

import enum
import struct
from array import array
from dataclasses import dataclass

from pocketserve.formats import DamagedFileError
from pocketserve.formats.protobuf import ProtobufReader, Span

MAX_MODEL_BYTES = 16 << 20
"""The largest in wide use, with 256,000 pieces, have 5 MB."""

MAX_PIECES = 1 << 19
MAX_PIECE_CHARS = 128
"""Usual are 16. It bounds the work at each place of a text."""

_CONTROLS = {46: b"<s>", 47: b"</s>", 48: b"<pad>"}
"""Fields of the trainer's options that name pieces, with their defaults."""

Value = int | bytes


class ModelKind(enum.IntEnum):
    """How a text is cut: into the likeliest pieces, by merging neighbours, at spaces, or into characters."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class PieceType(enum.IntEnum):
    """What a piece is."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class SentencePieceError(ValueError):
    """A file that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What a ``.model`` file says.

    Attributes:
        pieces: by number; ``scores`` and ``types`` (of PieceType) go with them.
        kind: how a text is cut.
        unknown: the number of what the vocabulary does not have.
        bos, eos, pad: numbers of the pieces for the beginning, the end and padding; None where there are none.
        byte_fallback: unknown characters become their bytes.
        whitespace_behind: a word's space stands behind it.
        charsmap: the compiled rules of normalisation; empty for none.
        add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces: as in ``NormalizerSpec``.
    """

    pieces: list[str]
    scores: array[float]
    types: bytearray
    kind: ModelKind
    unknown: int
    bos: int | None
    eos: int | None
    pad: int | None
    byte_fallback: bool
    whitespace_behind: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool


def read_model(content: bytes) -> SentencePieceModel:
    """Read a ``.model`` file.

    Raises:
        SentencePieceError: it is none, or exceeds a limit, or is of a kind that is not supported.
    """
    if len(content) > MAX_MODEL_BYTES:
        raise SentencePieceError(f"it has {len(content)} bytes, the limit is {MAX_MODEL_BYTES}")
    pieces: list[str] = []
    scores, types = array("f"), bytearray()
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    reader = ProtobufReader(content, len(content))
    try:
        for number, span in reader.parts((0, len(content))):
            if number == 1:
                piece, score, of_type = _piece(_values(reader, span))
                pieces.append(piece)
                scores.append(score)
                types.append(of_type)
            elif number == 2:
                trainer = _values(reader, span)
            elif number == 3:
                normalizer = _values(reader, span)
            if len(pieces) > MAX_PIECES:
                raise SentencePieceError(f"it has more than {MAX_PIECES} pieces")
    except (DamagedFileError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise SentencePieceError(f"it is damaged, or no SentencePiece model: {error}") from None
    kind = trainer.get(3, 1)
    if kind not in ModelKind.__members__.values():
        raise SentencePieceError(f"its type is {kind!r:.20}; known are unigram, BPE, word and char (1 to 4)")
    controls = {piece: number for number, piece in enumerate(pieces) if types[number] == PieceType.CONTROL}
    bos, eos, pad = (controls.get(_bytes(trainer.get(n, d)).decode(errors="replace")) for n, d in _CONTROLS.items())
    return SentencePieceModel(
        pieces=pieces,
        scores=scores,
        types=types,
        kind=ModelKind(int(kind)),
        unknown=_checked(pieces, types),
        bos=bos,
        eos=eos,
        pad=pad,
        byte_fallback=bool(trainer.get(35, 0)),
        whitespace_behind=bool(trainer.get(24, 0)),
        charsmap=_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        escape_whitespaces=bool(normalizer.get(5, 1)),
    )


def _checked(pieces: list[str], types: bytearray) -> int:
    """The number of the unknown piece."""
    if types.count(PieceType.UNKNOWN) != 1:
        raise SentencePieceError(f"it has {len(pieces)} pieces, and not just one that stands for the unknown")
    if len(set(pieces)) != len(pieces):
        raise SentencePieceError("a piece stands in it twice")
    return types.index(PieceType.UNKNOWN)


def _piece(fields: dict[int, Value]) -> tuple[str, float, int]:
    text = _bytes(fields.get(1, b"")).decode("utf-8")
    kind, score = fields.get(3, 1), fields.get(2, 0.0)
    if not text or len(text) > MAX_PIECE_CHARS:
        raise SentencePieceError(f"a piece has {len(text)} characters; 1 to {MAX_PIECE_CHARS} are possible")
    if kind not in PieceType.__members__.values():
        raise SentencePieceError(f"the piece {text!r:.40} is of unknown type {kind!r:.20}")
    if isinstance(score, bytes):
        (score,) = struct.unpack("<f", score)
        if score != score or score in (float("inf"), float("-inf")):
            raise SentencePieceError(f"the piece {text!r:.40} has no finite score")
    return text, score, int(kind)


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise SentencePieceError("it is damaged, or no SentencePiece model: a number where bytes belong")
    return value


def _values(reader: ProtobufReader, span: Span) -> dict[int, Value]:
    """Return a message's fields by number: whole numbers as such, all others as bytes."""
    return {
        number: value if wire_type == 0 else bytes(reader.data[value:end])
        for number, wire_type, value, end in reader.fields(span)
    }
