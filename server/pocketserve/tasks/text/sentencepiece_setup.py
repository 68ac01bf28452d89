"""A tokenizer out of a SentencePiece file, with what its model wants around a text."""

from __future__ import annotations

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.sentencepiece import SentencePiece
from pocketserve.tasks.text.sentencepiece_model import PieceType, SentencePieceError, SentencePieceModel, read_model
from pocketserve.tasks.text.tokens import Special, keeps_case


def sentencepiece_of(content: bytes, name: str, options: TextOptions) -> SentencePiece:
    """Set up the tokenizer of a ``.model`` file.

    Args:
        name: the file's, for errors.

    Raises:
        ModelLoadError: it cannot be used.
    """
    try:
        model = read_model(content)
        words = [p for p, kind in zip(model.pieces, model.types, strict=True) if kind == PieceType.NORMAL]
        special, like_bert = _special(model, options)
        # Models like BERT, such as ALBERT, were trained on small letters, which the file's rules do not always make.
        lower = like_bert and not keeps_case(words) if options.lower_case is None else options.lower_case
        return SentencePiece(model, special, lower_case=lower)
    except SentencePieceError as error:
        raise ModelLoadError(f"the model's tokenizer {name} cannot be used: {error}") from None


def _special(model: SentencePieceModel, options: TextOptions) -> tuple[Special, bool]:
    """Return what stands around a text, and whether that is as with BERT: where the pieces have [CLS] and [SEP]."""
    numbers = {name: model.pieces.index(name) for name in ("[CLS]", "[SEP]", "[PAD]") if name in model.pieces}
    pad = numbers.get("[PAD]", 0) if model.pad is None else model.pad
    if options.add_bos is None and options.add_eos is None and {"[CLS]", "[SEP]"} <= numbers.keys():
        last = (numbers["[SEP]"],)
        return Special((numbers["[CLS]"],), last, last, pad, model.unknown), True
    first = _wanted(options.add_bos, model.bos, "add_bos")
    last_piece = _wanted(options.add_eos, model.eos, "add_eos")
    return Special(first, last_piece, last_piece, pad, model.unknown), False


def _wanted(wanted: bool | None, number: int | None, key: str) -> tuple[int, ...]:
    if not wanted:
        return ()
    if number is None:
        raise ModelLoadError(f"model.toml: text.{key} is true, but the tokenizer has no such piece")
    return (number,)
