"""Selection of a model's tokenizer: the manifest's, else that of its metadata, else of the files beside it.

``tokenizer.json`` and ``vocab.txt`` are those of Hugging Face. BERT's pipeline and SentencePiece's models run in our
own code; any other needs the ``tokenizers`` library (the ``text`` extra).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import BertTokenizer, RegexTokenizer, SentencePieceTokenizer
from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.model_facts import MAX_JSON_BYTES, MetadataError, ModelFacts
from pocketserve.tasks.text.library_patterns import check_pattern, patterns_in
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.regex_words import RegexWords
from pocketserve.tasks.text.sentencepiece import SentencePiece
from pocketserve.tasks.text.sentencepiece_model import (
    MAX_MODEL_BYTES,
    PieceType,
    SentencePieceError,
    SentencePieceModel,
    read_model,
)
from pocketserve.tasks.text.tokens import Special, Token, Tokenizer, keeps_case
from pocketserve.tasks.text.wordpiece import MAX_WORD_CHARS, WORD_CHARS_LIMIT, WordPiece

TokenizerUnit = BertTokenizer | RegexTokenizer | SentencePieceTokenizer
_KINDS = {BertTokenizer: "wordpiece", RegexTokenizer: "regex", SentencePieceTokenizer: "sentencepiece"}
MAX_VOCABULARY_BYTES = 16 * 2**20
MAX_ASSOCIATED_BYTES = 8 << 20
MAX_TOKENIZER_BYTES = 64 * 2**20
MAX_LINES = 1 << 20  # of a vocabulary; the largest in wide use have 500,000
MAX_GROWTH = 256  # of a text, by what is put instead of parts of it
MAX_PREFIX_CHARS = 16
_PIECE_BYTES = 200  # that a piece takes in a mapping from texts to numbers
_LIBRARY_SHARE = 4  # the library's memory for each byte of its file, measured


def tokenizer_of(facts: ModelFacts, options: TextOptions) -> Tokenizer:
    """Set up the model's tokenizer.

    Raises:
        MetadataError: the one that the file's metadata names cannot be used, and the manifest has no ``[text]``.
        ModelLoadError: there is none, or it cannot be used.
    """
    if options.tokenizer == "huggingface":
        return _of_tokenizer_json(facts, options)
    if options.tokenizer is None and options.vocabulary is None:
        unit = tokenizer_unit(facts)
        if unit is not None:
            try:
                return _of_metadata(facts, unit, options)
            except ModelLoadError as error:
                if TextOptions in facts.manifest.sections:
                    raise
                raise MetadataError(str(error)) from error
        if facts.beside("tokenizer.json") is not None:
            return _of_tokenizer_json(facts, options)
        if facts.beside("vocab.txt") is None:
            raise ModelLoadError(
                "model.toml: the model has no tokenizer: put its tokenizer.json or vocab.txt beside it, "
                "or name text.tokenizer and text.vocabulary"
            )
    name = options.vocabulary or ("spiece.model" if options.tokenizer == "sentencepiece" else "vocab.txt")
    path = facts.beside(name)
    if path is None:
        raise ModelLoadError(f"model.toml: text.vocabulary {name} is not beside the model")
    content = facts.read_beside(path, MAX_VOCABULARY_BYTES)
    return _build(options.tokenizer, name, content, options.delimiter or r"[^\w']+", facts, options)


def tokenizer_unit(facts: ModelFacts) -> TokenizerUnit | None:
    """Return the tokenizer among the metadata's process units, of the graph or of an input."""
    metadata = facts.metadata
    units = [*metadata.input_process_units, *(unit for tensor in metadata.inputs for unit in tensor.process_units)]
    return next((unit for unit in units if isinstance(unit, TokenizerUnit)), None)


def _of_metadata(facts: ModelFacts, unit: TokenizerUnit, options: TextOptions) -> Tokenizer:
    pieces = isinstance(unit, SentencePieceTokenizer)
    files = unit.model_files if isinstance(unit, SentencePieceTokenizer) else unit.vocab_files
    if not files:
        raise ModelLoadError(
            "the model's metadata names a tokenizer, but no file of it; name text.tokenizer and text.vocabulary in "
            "model.toml"
        )
    try:
        limit = MAX_MODEL_BYTES if pieces else MAX_ASSOCIATED_BYTES
        (content,) = facts.associated_files([files[0].name], limit)
    except DamagedFileError as error:
        raise ModelLoadError(f"the model's vocabulary cannot be read: {error}") from None
    delimiter = unit.delimiter if isinstance(unit, RegexTokenizer) else ""
    return _build(_KINDS[type(unit)], files[0].name, content, delimiter, facts, options)


def _build(
    kind: str | None, name: str, content: bytes, delimiter: str, facts: ModelFacts, options: TextOptions
) -> Tokenizer:
    """Build a tokenizer of a vocabulary file: WordPiece, unless ``kind`` says otherwise."""
    if kind == "sentencepiece":
        tokenizer = sentencepiece_of(content, name, options)
        facts.weights["tokenizer"] = len(content) + _PIECE_BYTES * len(tokenizer.model.pieces)
        return tokenizer
    if content.count(b"\n") > MAX_LINES:
        raise ModelLoadError(f"the model's vocabulary has more than {MAX_LINES:,} lines")
    facts.weights["tokenizer"] = _weight(content)
    return _regex(delimiter, content, options) if kind == "regex" else _wordpiece(content, facts, options)


def sentencepiece_of(content: bytes, name: str, options: TextOptions) -> SentencePiece:
    """Set up the tokenizer of the ``.model`` file ``name``."""
    try:
        model = read_model(content)
        words = [p for p, kind in zip(model.pieces, model.types, strict=True) if kind == PieceType.NORMAL]
        special, like_bert = _sentencepiece_special(model, options)
        # Models like BERT, such as ALBERT, were trained on small letters, which the file's rules do not always make.
        lower = like_bert and not keeps_case(words) if options.lower_case is None else options.lower_case
        return SentencePiece(model, special, lower_case=lower)
    except SentencePieceError as error:
        raise ModelLoadError(f"the model's tokenizer {name} cannot be used: {error}") from None


def _sentencepiece_special(model: SentencePieceModel, options: TextOptions) -> tuple[Special, bool]:
    """Return what stands around a text, and whether that is as with BERT: where the pieces have [CLS] and [SEP]."""
    numbers = {name: model.pieces.index(name) for name in ("[CLS]", "[SEP]", "[PAD]") if name in model.pieces}
    pad = numbers.get("[PAD]", 0) if model.pad is None else model.pad
    if options.add_bos is None and options.add_eos is None and {"[CLS]", "[SEP]"} <= numbers.keys():
        cls, sep = (numbers["[CLS]"],), (numbers["[SEP]"],)
        return Special(cls, sep, sep, pad, model.unknown), True
    around = []
    for key, enabled, number in (("add_bos", options.add_bos, model.bos), ("add_eos", options.add_eos, model.eos)):
        if enabled and number is None:
            raise ModelLoadError(f"model.toml: text.{key} is true, but the tokenizer has no such piece")
        around.append((number,) if enabled and number is not None else ())
    first, last = around
    return Special(first, last, last, pad, model.unknown), False


def _regex(delimiter: str, content: bytes, options: TextOptions) -> Tokenizer:
    # Lines are "word number", or only the word. Words may hold anything, so only the last space of a line parts it.
    lines = [
        line.rstrip("\r").rpartition(" ") for line in content.decode("utf-8", errors="replace").split("\n") if line
    ]
    pairs = {word: int(number) for word, _, number in lines if number.isdecimal() and len(number) < 10}
    vocabulary = pairs if len(pairs) > 0.9 * len(lines) else _numbered(content)
    try:
        return RegexWords(delimiter, vocabulary, lower_case=bool(options.lower_case))
    except ValueError as error:
        raise ModelLoadError(f"the model's tokenizer cannot be used: {error}") from None


def _wordpiece(content: bytes, facts: ModelFacts, options: TextOptions) -> WordPiece:
    vocabulary = _numbered(content)
    config = facts.json_beside("tokenizer_config.json")
    lower = config.get("do_lower_case") if options.lower_case is None else options.lower_case
    accents = config.get("strip_accents")
    return WordPiece(
        vocabulary,
        _bert_special(vocabulary),
        lower_case=lower if isinstance(lower, bool) else not keeps_case(vocabulary),
        strip_accents=accents if isinstance(accents, bool) else None,
        cjk=config.get("tokenize_chinese_chars") is not False,
    )


def _bert_special(vocabulary: Mapping[str, int]) -> Special:
    missing = [token for token in ("[CLS]", "[SEP]", "[UNK]") if token not in vocabulary]
    if missing:
        raise ModelLoadError(f"the model's vocabulary has no {missing[0]}: it is not one of BERT's")
    cls, sep = (vocabulary["[CLS]"],), (vocabulary["[SEP]"],)
    return Special(cls, sep, sep, vocabulary.get("[PAD]", 0), vocabulary["[UNK]"])


def _of_tokenizer_json(facts: ModelFacts, options: TextOptions) -> Tokenizer:
    path = facts.beside("tokenizer.json")
    if path is None:
        raise ModelLoadError(
            "model.toml: text.tokenizer is huggingface, but there is no tokenizer.json beside the model"
        )
    content = facts.read_beside(path, MAX_TOKENIZER_BYTES)
    bert = None if options.tokenizer == "huggingface" else _bert_pipeline(content)
    if bert is not None:
        facts.weights["tokenizer"] = _weight(content)
        return bert
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise ModelLoadError(
            "this model's tokenizer.json needs the tokenizers library: pip install 'pocketserve[text]', "
            "on Termux pkg install rust first"
        ) from None
    try:
        library = Library.from_str(content.decode("utf-8"))
        for part in (library.normalizer, library.pre_tokenizer):
            for pattern in patterns_in(None if part is None else json.loads(part.__getstate__())):
                check_pattern(pattern)
        tokenizer = LibraryTokenizer(library)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ModelLoadError(f"tokenizer.json beside the model cannot be used: {str(error)[:200]}") from None
    facts.weights["tokenizer"] = _LIBRARY_SHARE * len(content)
    return tokenizer


def _bert_pipeline(content: bytes) -> WordPiece | None:
    """Return BERT's pipeline as a ``tokenizer.json`` spells it out; None for any other."""
    try:
        document = json.loads(content) if len(content) <= MAX_JSON_BYTES else {}
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"tokenizer.json beside the model cannot be read: {str(error)[:200]}") from None
    parts = document if isinstance(document, dict) else {}
    model, normal, split = (parts.get(key) or {} for key in ("model", "normalizer", "pre_tokenizer"))
    if not all(isinstance(part, dict) for part in (model, normal, split)):
        return None
    kinds = (model.get("type", "WordPiece"), normal.get("type"), split.get("type"))
    vocabulary, prefix = model.get("vocab"), model.get("continuing_subword_prefix", "##")
    max_word_chars = model.get("max_input_chars_per_word", MAX_WORD_CHARS)
    if not (
        kinds == ("WordPiece", "BertNormalizer", "BertPreTokenizer")
        and isinstance(vocabulary, dict)
        and {"[CLS]", "[SEP]", "[UNK]"} <= vocabulary.keys()
        and model.get("unk_token") == "[UNK]"
        and isinstance(prefix, str)
        and len(prefix) <= MAX_PREFIX_CHARS
        and type(max_word_chars) is int
        and all(type(number) is int and 0 <= number < 1 << 31 for number in vocabulary.values())
    ):
        return None
    accents = normal.get("strip_accents")
    return WordPiece(
        vocabulary,
        _bert_special(vocabulary),
        lower_case=bool(normal.get("lowercase", True)),
        strip_accents=accents if isinstance(accents, bool) else None,
        clean=bool(normal.get("clean_text", True)),
        cjk=bool(normal.get("handle_chinese_chars", True)),
        prefix=prefix,
        max_word_chars=max_word_chars,
    )


class LibraryTokenizer:
    """Any ``tokenizer.json``, through a ``tokenizers.Tokenizer`` of the library."""

    def __init__(self, library: Any) -> None:
        normalizer = library.normalizer
        if normalizer is not None and _growth(json.loads(normalizer.__getstate__())) > MAX_GROWTH:
            raise ModelLoadError(f"tokenizer.json replaces texts by more than {MAX_GROWTH} times longer ones")
        if hasattr(library.model, "max_input_chars_per_word"):  # cutting a word up costs its length squared
            library.model.max_input_chars_per_word = min(library.model.max_input_chars_per_word, WORD_CHARS_LIMIT)
        library.no_padding()
        library.no_truncation()
        self._library = library
        self.special = self._specials()

    def tokens(self, text: str) -> Iterator[Token]:
        try:
            # Unlike encode, it lets other threads go on meanwhile: a file's regular expressions may take for ever.
            encoded = self._library.encode_batch([text], add_special_tokens=False)[0]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # what Rust calls a panic is no Exception, and would end the request's thread
            raise invalid_input(f"the model's tokenizer cannot take this text: {str(error)[:200]}") from None
        return (Token(number, *offsets) for number, offsets in zip(encoded.ids, encoded.offsets, strict=True))

    def _specials(self) -> Special:
        """Return what the post-processor puts around a pair of texts, as in an example."""
        encoded = self._library.encode("a", "a")
        pairs = zip(encoded.ids, encoded.special_tokens_mask, strict=True)
        runs = [
            (bool(mark), tuple(number for number, _ in run)) for mark, run in itertools.groupby(pairs, lambda p: p[1])
        ]
        first = runs[0][1] if runs and runs[0][0] else ()
        last = runs[-1][1] if len(runs) > 1 and runs[-1][0] else ()
        middle = tuple(number for mark, numbers in runs[1:-1] if mark for number in numbers)
        return Special(first, middle, last, self._number("[PAD]", "<pad>"), self._number("[UNK]", "<unk>"))

    def _number(self, *names: str) -> int:
        numbers = (self._library.token_to_id(name) for name in names)
        return next((number for number in numbers if number is not None), 0)


def _growth(normalizer: Any) -> int:
    """Return how many times longer a text may become by a normalizer's ``Replace`` parts, one after the other."""
    if not isinstance(normalizer, dict):
        return 1
    growth = max(1, len(str(normalizer.get("content", "")))) if normalizer.get("type") == "Replace" else 1
    for part in normalizer.get("normalizers", ()):
        growth *= _growth(part)
    return growth


def _weight(content: bytes) -> int:
    """Estimate the memory of a vocabulary: its text, and each piece as a key of a mapping."""
    return len(content) + _PIECE_BYTES * max(content.count(b"\n"), content.count(b":"))


def _numbered(content: bytes) -> dict[str, int]:
    """Return a vocabulary with one token a line, numbered from 0."""
    lines = content.decode("utf-8-sig", errors="replace").split("\n")
    return {line.rstrip("\r"): number for number, line in enumerate(lines) if line.rstrip("\r")}
