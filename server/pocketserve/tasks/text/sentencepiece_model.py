"""Read SentencePiece's ``.model`` files.

They are Protocol Buffers with the pieces, their scores and the normalisation rules.
The files are untrusted: sizes are bounded, and malformed content is rejected. Only
fields that affect tokens are read; field numbers are those of
``sentencepiece_model.proto``.
"""

from __future__ import annotations

import enum
import math
import struct
from array import array
from typing import NamedTuple

from pocketserve.formats import DamagedFileError
from pocketserve.formats.protobuf import ProtobufReader, Span

MAX_MODEL_BYTES = 16 << 20  # the largest in wide use, with 256,000 pieces, have 5 MB
MAX_PIECES = 1 << 19
MAX_PIECE_CHARS = 128  # 16 is usual; it bounds the work at each position of a text

ModelKind = enum.IntEnum("ModelKind", "UNIGRAM BPE WORD CHAR")
PieceType = enum.IntEnum("PieceType", "NORMAL UNKNOWN CONTROL USER_DEFINED UNUSED BYTE")
FieldValue = int | bytes
_DAMAGED = "it is damaged, or not a SentencePiece model"
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # field numbers of the top-level message


class SentencePieceError(ValueError):
    """Report an unusable file; the text says why."""


class SentencePieceModel(NamedTuple):
    """The content of a ``.model`` file.

    Attributes:
        pieces: by number, like ``scores`` and ``types`` (values of PieceType).
        kind: the algorithm: likeliest pieces, merged pairs, words or characters.
        unknown: the number of the unknown piece.
        bos: number of the piece for the beginning of a text; None without one.
        eos: the same for the end.
        pad: the same for padding.
        byte_fallback: unknown characters become their UTF-8 bytes.
        whitespace_behind: a word's space follows the word.
        charsmap: the compiled normalisation rules; empty without any.
        add_dummy_prefix: this and the next two are those of ``NormalizerSpec``.
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

    def numbers_of(self, *types: PieceType) -> list[int]:
        """Return the numbers of the pieces of some types."""
        return [number for number, type_ in enumerate(self.types) if type_ in types]

    def pieces_of(self, *types: PieceType) -> list[str]:
        """Return the pieces of some types."""
        return [self.pieces[number] for number in self.numbers_of(*types)]


class _RawModel:
    """The raw parts of a file."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.scores = array("f")
        self.types = bytearray()
        self.trainer: dict[int, FieldValue] = {}
        self.normalizer: dict[int, FieldValue] = {}

    def read(self, reader: ProtobufReader, size: int) -> None:
        for number, span in reader.parts((0, size)):
            if number == _PIECES:
                self._add_piece(_values(reader, span))
            elif number == _TRAINER:
                self.trainer = _values(reader, span)
            elif number == _NORMALIZER:
                self.normalizer = _values(reader, span)

    def _add_piece(self, fields: dict[int, FieldValue]) -> None:
        piece, score, kind = _piece(fields)
        self.pieces.append(piece)
        self.scores.append(score)
        self.types.append(kind)
        if len(self.pieces) > MAX_PIECES:
            raise SentencePieceError(f"it has more than {MAX_PIECES} pieces")


def read_model(content: bytes) -> SentencePieceModel:
    """Read a ``.model`` file.

    Raises:
        SentencePieceError: it is malformed, exceeds a limit or is unsupported.
    """
    size = len(content)
    if size > MAX_MODEL_BYTES:
        raise SentencePieceError(f"it has {size} bytes, the limit is {MAX_MODEL_BYTES}")
    raw = _RawModel()
    try:
        raw.read(ProtobufReader(content, size), size)
    except (DamagedFileError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise SentencePieceError(f"{_DAMAGED}: {error}") from None
    model_kind = raw.trainer.get(3, 1)
    if model_kind not in [*ModelKind]:
        raise SentencePieceError(
            f"its type is {model_kind!r:.20}; known are unigram, BPE, word and char (1 to 4)"
        )
    _check_pieces(raw)
    return _model_of(raw, ModelKind(int(model_kind)))


def _check_pieces(raw: _RawModel) -> None:
    if raw.types.count(PieceType.UNKNOWN) != 1:
        raise SentencePieceError(
            f"it has {len(raw.pieces)} pieces, but not exactly one unknown piece"
        )
    if len(set(raw.pieces)) != len(raw.pieces):
        raise SentencePieceError("it has the same piece twice")


def _model_of(raw: _RawModel, kind: ModelKind) -> SentencePieceModel:
    controls = {}
    for number, piece in enumerate(raw.pieces):
        if raw.types[number] == PieceType.CONTROL:
            controls[piece.encode()] = number
    trainer = raw.trainer
    normalizer = raw.normalizer
    return SentencePieceModel(
        pieces=raw.pieces,
        scores=raw.scores,
        types=raw.types,
        kind=kind,
        unknown=raw.types.index(PieceType.UNKNOWN),
        bos=controls.get(_bytes(trainer.get(46, b"<s>"))),
        eos=controls.get(_bytes(trainer.get(47, b"</s>"))),
        pad=controls.get(_bytes(trainer.get(48, b"<pad>"))),
        byte_fallback=bool(trainer.get(35, 0)),
        whitespace_behind=bool(trainer.get(24, 0)),
        charsmap=_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        escape_whitespaces=bool(normalizer.get(5, 1)),
    )


def _piece(fields: dict[int, FieldValue]) -> tuple[str, float, int]:
    """Return a piece's text, score and type."""
    text = _bytes(fields.get(1, b"")).decode("utf-8")
    if not text or len(text) > MAX_PIECE_CHARS:
        raise SentencePieceError(
            f"a piece has {len(text)} characters; 1 to {MAX_PIECE_CHARS} are possible"
        )
    kind = fields.get(3, 1)
    if isinstance(kind, bytes) or not PieceType.NORMAL <= kind <= PieceType.BYTE:
        raise SentencePieceError(
            f"the piece {text!r:.40} is of unknown type {kind!r:.20}"
        )
    return text, _score(fields.get(2, 0), text), kind


def _score(value: FieldValue, text: str) -> float:
    if isinstance(value, int):
        return float(value)
    score: float = struct.unpack("<f", value)[0]
    if not math.isfinite(score):
        raise SentencePieceError(f"the piece {text!r:.40} has no finite score")
    return score


def _bytes(value: FieldValue) -> bytes:
    if not isinstance(value, bytes):
        raise SentencePieceError(f"{_DAMAGED}: a number instead of bytes")
    return value


def _values(reader: ProtobufReader, span: Span) -> dict[int, FieldValue]:
    """Return a message's fields, integers or bytes."""
    values: dict[int, FieldValue] = {}
    for number, wire_type, value, end in reader.fields(span):
        if wire_type == 0:
            values[number] = value
        else:
            values[number] = bytes(reader.data[value:end])
    return values
