"""Which tokenizer a model has: as its manifest says, as its TFLite metadata says, or from the files beside it.

``tokenizer.json`` and ``vocab.txt`` are those of Hugging Face. BERT's pipeline and SentencePiece's models run in our
own code; any other needs the ``tokenizers`` library (the ``text`` extra).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import BertTokenizer, RegexTokenizer, SentencePieceTokenizer
from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.model_facts import MAX_JSON_BYTES, MetadataError, ModelFacts
from pocketserve.tasks.text.library_patterns import check_pattern, patterns_in
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.regex_words import RegexWords
from pocketserve.tasks.text.sentencepiece_model import MAX_MODEL_BYTES
from pocketserve.tasks.text.sentencepiece_setup import sentencepiece_of
from pocketserve.tasks.text.tokens import Special, Token, Tokenizer, keeps_case
from pocketserve.tasks.text.wordpiece import MAX_WORD_CHARS, WORD_CHARS_LIMIT, WordPiece

TokenizerUnit = BertTokenizer | RegexTokenizer | SentencePieceTokenizer
MAX_VOCABULARY_BYTES = 16 * 2**20
MAX_ASSOCIATED_BYTES = 8 << 20
MAX_TOKENIZER_BYTES = 64 * 2**20
MAX_PIECES = 1 << 20
MAX_GROWTH = 256
"""Of a text, by what is put in place of parts of it."""

"""Lines of a vocabulary. The largest in wide use have 500,000."""

MAX_PREFIX_CHARS = 16
_PIECE_BYTES = 200
"""That a piece takes in a mapping from texts to numbers."""

_LIBRARY_SHARE = 4
"""The library's memory for each byte of its file, measured."""


def tokenizer_of(facts: ModelFacts, options: TextOptions) -> Tokenizer:
    """The model's tokenizer.

    Raises:
        MetadataError: the one that the file's metadata names cannot be used, and the manifest has no ``[text]``.
        ModelLoadError: there is none, or it cannot be used.
    """
    if options.tokenizer == "huggingface":
        return _of_tokenizer_json(facts, options)
    if options.tokenizer is not None or options.vocabulary is not None:
        return _of_manifest(facts, options)
    unit = _unit(facts)
    if unit is not None:
        try:
            return _of_unit(facts, unit, options)
        except ModelLoadError as error:
            if TextOptions in facts.manifest.sections:
                raise
            raise MetadataError(str(error)) from error
    if facts.beside("tokenizer.json") is not None:
        return _of_tokenizer_json(facts, options)
    path = facts.beside("vocab.txt")
    if path is not None:
        return _wordpiece(facts.read_beside(path, MAX_VOCABULARY_BYTES), facts, options)
    raise ModelLoadError(
        "model.toml: the model has no tokenizer: put its tokenizer.json or vocab.txt beside it, "
        "or name text.tokenizer and text.vocabulary"
    )


def has_tokenizer(facts: ModelFacts) -> bool:
    """Return whether the file's own metadata names a tokenizer."""
    return _unit(facts) is not None


class LibraryTokenizer:
    """Any ``tokenizer.json``, through the library.

    Args:
        library: a ``tokenizers.Tokenizer``.

    Raises:
        ModelLoadError: it would make a text many times longer.
    """

    def __init__(self, library: Any) -> None:
        normal = library.normalizer
        if normal is not None and _growth(json.loads(normal.__getstate__())) > MAX_GROWTH:
            raise ModelLoadError(f"tokenizer.json replaces texts by more than {MAX_GROWTH} times longer ones")
        if hasattr(library.model, "max_input_chars_per_word"):  # cutting a word up costs its length squared
            library.model.max_input_chars_per_word = min(library.model.max_input_chars_per_word, WORD_CHARS_LIMIT)
        library.no_padding()
        library.no_truncation()
        self._library = library
        self.special = self._specials()

    def tokens(self, text: str) -> Iterator[Token]:
        """See :class:`~pocketserve.tasks.text.tokens.Tokenizer`."""
        encoded = self._encode(text)
        return (Token(number, *place) for number, place in zip(encoded.ids, encoded.offsets, strict=True))

    def _encode(self, text: str) -> Any:
        try:
            # Unlike encode, it lets other threads go on meanwhile: a file's regular expressions may take for ever.
            return self._library.encode_batch([text], add_special_tokens=False)[0]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # what Rust calls a panic is no Exception, and would end the request's thread
            raise invalid_input(f"the model's tokenizer cannot take this text: {str(error)[:200]}") from None

    def _specials(self) -> Special:
        """Return what the post-processor puts around a pair of texts, told from an example."""
        encoded = self._library.encode("a", "a")
        runs = [
            (bool(mark), [number for number, _ in group])
            for mark, group in itertools.groupby(
                zip(encoded.ids, encoded.special_tokens_mask, strict=True), key=lambda item: item[1]
            )
        ]
        first = tuple(runs[0][1]) if runs and runs[0][0] else ()
        last = tuple(runs[-1][1]) if len(runs) > 1 and runs[-1][0] else ()
        middle = tuple(number for marked, numbers in runs[1:-1] if marked for number in numbers)
        known = {token: self._library.token_to_id(token) for token in ("[PAD]", "<pad>", "[UNK]", "<unk>")}
        pad = next((known[token] for token in ("[PAD]", "<pad>") if known[token] is not None), 0)
        unknown = next((known[token] for token in ("[UNK]", "<unk>") if known[token] is not None), 0)
        return Special(first, middle, last, pad, unknown)


def _growth(normalizer: Any) -> int:
    """Return how many times longer a text may become by what a normalizer's ``Replace`` parts put in, one after the
    other.
    """
    if not isinstance(normalizer, dict):
        return 1
    growth = max(1, len(str(normalizer.get("content", "")))) if normalizer.get("type") == "Replace" else 1
    for part in normalizer.get("normalizers", ()):
        growth *= _growth(part)
    return growth


def _unit(facts: ModelFacts) -> TokenizerUnit | None:
    """The tokenizer among the process units, of the graph or of an input."""
    metadata = facts.metadata
    if metadata is None:
        return None
    units = [*metadata.input_process_units, *(unit for tensor in metadata.inputs for unit in tensor.process_units)]
    return next((unit for unit in units if isinstance(unit, TokenizerUnit)), None)


def _of_unit(facts: ModelFacts, unit: TokenizerUnit, options: TextOptions) -> Tokenizer:
    pieces = isinstance(unit, SentencePieceTokenizer)
    files = unit.model_files if isinstance(unit, SentencePieceTokenizer) else unit.vocab_files
    if not files:
        raise ModelLoadError(
            "the model's metadata names a tokenizer, but no file of it; name text.tokenizer and text.vocabulary in "
            "model.toml"
        )
    try:
        limit = MAX_MODEL_BYTES if pieces else MAX_ASSOCIATED_BYTES
        content = facts.associated_files([files[0].name], limit)[0]
    except DamagedFileError as error:
        raise ModelLoadError(f"the model's vocabulary cannot be read: {error}") from None
    if isinstance(unit, SentencePieceTokenizer):
        return _sentencepiece(content, files[0].name, facts, options)
    if isinstance(unit, BertTokenizer):
        return _wordpiece(content, facts, options)
    return _regex(unit.delimiter, content, facts, options)


def _of_manifest(facts: ModelFacts, options: TextOptions) -> Tokenizer:
    name = options.vocabulary or ("spiece.model" if options.tokenizer == "sentencepiece" else "vocab.txt")
    path = facts.beside(name)
    if path is None:
        raise ModelLoadError(f"model.toml: text.vocabulary {name} is not beside the model")
    content = facts.read_beside(path, MAX_VOCABULARY_BYTES)
    if options.tokenizer == "sentencepiece":
        return _sentencepiece(content, name, facts, options)
    if options.tokenizer == "regex":
        return _regex(options.delimiter or r"[^\w']+", content, facts, options)
    return _wordpiece(content, facts, options)


def _sentencepiece(content: bytes, name: str, facts: ModelFacts, options: TextOptions) -> Tokenizer:
    tokenizer = sentencepiece_of(content, name, options)
    facts.weights["tokenizer"] = len(content) + _PIECE_BYTES * tokenizer.pieces
    return tokenizer


def _regex(delimiter: str, content: bytes, facts: ModelFacts, options: TextOptions) -> Tokenizer:
    facts.weights["tokenizer"] = _weight(_checked(content))
    # Lines are "word number", or only the word. Words may be odd, so only the last space of a line parts it.
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
    vocabulary = _numbered(_checked(content))
    facts.weights["tokenizer"] = _weight(content)
    said = facts.json_beside("tokenizer_config.json")
    lower = options.lower_case
    if lower is None and isinstance(said.get("do_lower_case"), bool):
        lower = said["do_lower_case"]
    if lower is None:
        lower = not keeps_case(vocabulary)
    accents = said.get("strip_accents")
    return WordPiece(
        vocabulary,
        _bert_special(vocabulary),
        lower_case=lower,
        strip_accents=accents if isinstance(accents, bool) else None,
        cjk=said.get("tokenize_chinese_chars") is not False,
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
    own = None if options.tokenizer == "huggingface" else _own_pipeline(content)
    if own is not None:
        facts.weights["tokenizer"] = _weight(content)
        return own
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise ModelLoadError(
            "this model's tokenizer.json needs the tokenizers library: pip install 'pocketserve[text]', "
            "on Termux pkg install rust first"
        ) from None
    try:
        made = Library.from_str(content.decode("utf-8"))
        for part in (made.normalizer, made.pre_tokenizer):
            for pattern in patterns_in(None if part is None else json.loads(part.__getstate__())):
                check_pattern(pattern)
        library = LibraryTokenizer(made)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ModelLoadError(f"tokenizer.json beside the model cannot be used: {str(error)[:200]}") from None
    facts.weights["tokenizer"] = _LIBRARY_SHARE * len(content)
    return library


def _own_pipeline(content: bytes) -> WordPiece | None:
    """BERT's pipeline as a ``tokenizer.json`` spells it out; None for any other."""
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
    longest = model.get("max_input_chars_per_word", MAX_WORD_CHARS)
    if kinds != ("WordPiece", "BertNormalizer", "BertPreTokenizer") or not isinstance(vocabulary, dict):
        return None
    if not {"[CLS]", "[SEP]", "[UNK]"} <= vocabulary.keys() or model.get("unk_token") != "[UNK]":
        return None
    if not isinstance(prefix, str) or len(prefix) > MAX_PREFIX_CHARS or type(longest) is not int:
        return None
    if not all(type(number) is int and 0 <= number < 1 << 31 for number in vocabulary.values()):
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
        max_word_chars=longest,
    )


def _weight(content: bytes) -> int:
    """Return what a vocabulary takes in memory: its text, and each piece as a key of a mapping."""
    return len(content) + _PIECE_BYTES * max(content.count(b"\n"), content.count(b":"))


def _checked(content: bytes) -> bytes:
    if content.count(b"\n") > MAX_PIECES:
        raise ModelLoadError(f"the model's vocabulary has more than {MAX_PIECES:,} lines")
    return content


def _numbered(content: bytes) -> dict[str, int]:
    """A vocabulary with one token a line, numbered from 0."""
    lines: Sequence[str] = content.decode("utf-8-sig", errors="replace").split("\n")
    return {line.rstrip("\r"): number for number, line in enumerate(lines) if line.rstrip("\r")}
