"""SentencePiece's ``.model`` files: Protocol Buffers with the pieces, their scores and how text is normalised.

The files are not to be trusted: sizes are bounded, and what does not follow the format is refused. Only what decides
the tokens is read; field numbers are those of ``sentencepiece_model.proto``.
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
MAX_PIECE_CHARS = 128  # usual are 16; it bounds the work at each position of a text

ModelKind = enum.IntEnum("ModelKind", "UNIGRAM BPE WORD CHAR")
PieceType = enum.IntEnum("PieceType", "NORMAL UNKNOWN CONTROL USER_DEFINED UNUSED BYTE")
Value = int | bytes


class SentencePieceError(ValueError):
    """A file that cannot be used; the text says why."""


class SentencePieceModel(NamedTuple):
    """The content of a ``.model`` file."""

    pieces: list[str]  # by number; ``scores`` and ``types`` (of PieceType) go with them
    scores: array[float]
    types: bytearray
    kind: ModelKind  # cut into the likeliest pieces, by merging neighbours, at spaces, or into characters
    unknown: int  # the number of what the vocabulary does not have
    bos: (
        int | None
    )  # pieces for the beginning, the end and padding; None where there are none
    eos: int | None
    pad: int | None
    byte_fallback: bool  # unknown characters become their bytes
    whitespace_behind: bool  # a word's space stands behind it
    charsmap: bytes  # the compiled rules of normalisation; empty for none
    add_dummy_prefix: bool  # this and the next two as in ``NormalizerSpec``
    remove_extra_whitespaces: bool
    escape_whitespaces: bool


def read_model(content: bytes) -> SentencePieceModel:
    """Read a ``.model`` file.

    Raises:
        SentencePieceError: it is none, or exceeds a limit, or is of a kind that is not supported.
    """
    if len(content) > MAX_MODEL_BYTES:
        raise SentencePieceError(
            f"it has {len(content)} bytes, the limit is {MAX_MODEL_BYTES}"
        )
    pieces: list[str] = []
    scores, types = array("f"), bytearray()
    options: dict[int, dict[int, Value]] = {2: {}, 3: {}}
    reader = ProtobufReader(content, len(content))
    try:
        for number, span in reader.parts((0, len(content))):
            if number == 1:
                piece, score, kind = _piece(_values(reader, span))
                pieces.append(piece)
                scores.append(score)
                types.append(kind)
            elif number in options:
                options[number] = _values(reader, span)
            if len(pieces) > MAX_PIECES:
                raise SentencePieceError(f"it has more than {MAX_PIECES} pieces")
    except (DamagedFileError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise SentencePieceError(
            f"it is damaged, or no SentencePiece model: {error}"
        ) from None
    trainer, normalizer = options[2], options[3]
    model_kind = trainer.get(3, 1)
    if model_kind not in [*ModelKind]:
        raise SentencePieceError(
            f"its type is {model_kind!r:.20}; known are unigram, BPE, word and char (1 to 4)"
        )
    if types.count(PieceType.UNKNOWN) != 1:
        raise SentencePieceError(
            f"it has {len(pieces)} pieces, and not just one that stands for the unknown"
        )
    if len(set(pieces)) != len(pieces):
        raise SentencePieceError("a piece stands in it twice")
    controls = {
        piece.encode(): n
        for n, piece in enumerate(pieces)
        if types[n] == PieceType.CONTROL
    }
    return SentencePieceModel(
        pieces=pieces,
        scores=scores,
        types=types,
        kind=ModelKind(int(model_kind)),
        unknown=types.index(PieceType.UNKNOWN),
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


def _piece(fields: dict[int, Value]) -> tuple[str, float, int]:
    text = _bytes(fields.get(1, b"")).decode("utf-8")
    kind, score = fields.get(3, 1), fields.get(2, 0.0)
    if not text or len(text) > MAX_PIECE_CHARS:
        raise SentencePieceError(
            f"a piece has {len(text)} characters; 1 to {MAX_PIECE_CHARS} are possible"
        )
    if isinstance(kind, bytes) or not PieceType.NORMAL <= kind <= PieceType.BYTE:
        raise SentencePieceError(
            f"the piece {text!r:.40} is of unknown type {kind!r:.20}"
        )
    if isinstance(score, bytes):
        (score,) = struct.unpack("<f", score)
        if not math.isfinite(score):
            raise SentencePieceError(f"the piece {text!r:.40} has no finite score")
    return text, score, kind


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise SentencePieceError(
            "it is damaged, or no SentencePiece model: a number where bytes belong"
        )
    return value


def _values(reader: ProtobufReader, span: Span) -> dict[int, Value]:
    """Return a message's fields by number: whole numbers as such, all others as bytes."""
    return {
        number: value if wire_type == 0 else bytes(reader.data[value:end])
        for number, wire_type, value, end in reader.fields(span)
    }
