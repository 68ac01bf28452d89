"""Choose and build a model's tokenizer.

The order: the manifest's tokenizer, the one in the file's metadata, then Hugging Face's
``tokenizer.json`` or ``vocab.txt`` beside the model. Our own code runs BERT's pipeline
and SentencePiece models; any other needs the ``tokenizers`` library (extra ``text``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata_parts import (
    BertTokenizer,
    RegexTokenizer,
    SentencePieceTokenizer,
)
from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.model_facts import MAX_JSON_BYTES, MetadataError, ModelFacts
from pocketserve.tasks.text.hugging_face.added_tokens import (
    MAX_TOKENS,
    AddedToken,
    added_token,
)
from pocketserve.tasks.text.hugging_face.class_settings import (
    apply_class_settings,
    with_class_settings,
)
from pocketserve.tasks.text.hugging_face.post_processor import (
    UnsupportedProcessorError,
    special_of,
)
from pocketserve.tasks.text.hugging_face.tokenizer_classes import (
    CLASSES,
    FIXED_WORDS,
    GENERIC,
    reads_as_it_is,
    reject_other_frame,
    reject_other_model,
    reject_other_numbers,
    reject_other_words,
)
from pocketserve.tasks.text.hugging_face.tokenizer_settings import (
    TokenizerSettings,
    tokenizer_settings,
)
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
from pocketserve.tasks.text.tokens import (
    InnerToken,
    Special,
    Token,
    Tokenizer,
    keeps_case,
)
from pocketserve.tasks.text.wordpiece import MAX_WORD_CHARS, WORD_CHARS_LIMIT, WordPiece

TokenizerUnit = BertTokenizer | RegexTokenizer | SentencePieceTokenizer
_KINDS = {
    BertTokenizer: "wordpiece",
    RegexTokenizer: "regex",
    SentencePieceTokenizer: "sentencepiece",
}
MAX_VOCABULARY_BYTES = 16 * 2**20
MAX_ASSOCIATED_BYTES = 8 << 20
MAX_TOKENIZER_BYTES = 64 * 2**20
MAX_LINES = 1 << 20  # of a vocabulary; the largest in wide use have 500,000
MAX_GROWTH = 256  # factor by which replacements may lengthen a text
MAX_PREFIX_CHARS = 16
# Plain text if a user's text contains them.
_BERT_TOKENS = frozenset(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
_REQUIRED_BERT_TOKENS = ("[CLS]", "[SEP]", "[UNK]")
_PIECE_BYTES = 200  # memory of one piece as a key of a mapping
_LIBRARY_SHARE = 4  # the library's memory per byte of its file, measured


def tokenizer_of(facts: ModelFacts, options: TextOptions) -> Tokenizer:
    """Build the model's tokenizer.

    Raises:
        MetadataError: the tokenizer in the file's metadata is unusable, and the manifest
            has no ``[text]``.
        ModelLoadError: the model has no tokenizer, or it is unusable.
    """
    if options.tokenizer == "huggingface":
        return _of_tokenizer_json(facts, options)
    if options.tokenizer is None and options.vocabulary is None:
        tokenizer = _undeclared_tokenizer(facts, options)
        if tokenizer is not None:
            return tokenizer
    return _of_vocabulary_file(facts, options)


def _undeclared_tokenizer(facts: ModelFacts, options: TextOptions) -> Tokenizer | None:
    """Return the metadata's tokenizer or tokenizer.json; None if vocab.txt is left."""
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
            "model.toml: the model has no tokenizer: put its tokenizer.json or "
            "vocab.txt beside it, or name text.tokenizer and text.vocabulary"
        )
    return None


def _of_vocabulary_file(facts: ModelFacts, options: TextOptions) -> Tokenizer:
    """Build the tokenizer of a vocabulary file beside the model."""
    name = options.vocabulary
    if not name and options.tokenizer == "sentencepiece":
        name = "spiece.model"
    elif not name:
        name = "vocab.txt"
    path = facts.beside(name)
    if path is None:
        raise ModelLoadError(
            f"model.toml: text.vocabulary {name} is not beside the model"
        )
    content = facts.read_beside(path, MAX_VOCABULARY_BYTES)
    delimiter = options.delimiter or r"[^\w']+"
    return _build(options.tokenizer, name, content, delimiter, facts, options)


def tokenizer_unit(facts: ModelFacts) -> TokenizerUnit | None:
    """Return the first tokenizer in the metadata."""
    metadata = facts.metadata
    units = list(metadata.input_process_units)
    for tensor in metadata.inputs:
        units += tensor.process_units
    for unit in units:
        if isinstance(unit, TokenizerUnit):
            return unit
    return None


def _of_metadata(
    facts: ModelFacts, unit: TokenizerUnit, options: TextOptions
) -> Tokenizer:
    if isinstance(unit, SentencePieceTokenizer):
        files = unit.model_files
        limit = MAX_MODEL_BYTES
    else:
        files = unit.vocab_files
        limit = MAX_ASSOCIATED_BYTES
    if not files:
        raise ModelLoadError(
            "the model's metadata names a tokenizer but no vocabulary file; name "
            "text.tokenizer and text.vocabulary in model.toml"
        )
    name = files[0].name
    try:
        (content,) = facts.associated_files([name], limit)
    except DamagedFileError as error:
        raise ModelLoadError(
            f"the model's vocabulary cannot be read: {error}"
        ) from None
    delimiter = ""
    if isinstance(unit, RegexTokenizer):
        delimiter = unit.delimiter
    return _build(_KINDS[type(unit)], name, content, delimiter, facts, options)


def _build(
    kind: str | None,
    name: str,
    content: bytes,
    delimiter: str,
    facts: ModelFacts,
    options: TextOptions,
) -> Tokenizer:
    """Build a vocabulary file's tokenizer: WordPiece unless ``kind`` names another."""
    if kind == "sentencepiece":
        tokenizer = sentencepiece_of(content, name, options)
        piece_count = len(tokenizer.model.pieces)
        facts.weights["tokenizer"] = len(content) + _PIECE_BYTES * piece_count
        return tokenizer
    if content.count(b"\n") > MAX_LINES:
        raise ModelLoadError(
            f"the model's vocabulary has more than {MAX_LINES:,} lines"
        )
    facts.weights["tokenizer"] = _weight(content)
    if kind == "regex":
        return _regex(delimiter, content, options)
    return _wordpiece(content, facts, options)


def sentencepiece_of(content: bytes, name: str, options: TextOptions) -> SentencePiece:
    """Build the tokenizer of the ``.model`` file ``name``."""
    try:
        model = read_model(content)
        special = _bert_like_special(model, options)
        like_bert = special is not None
        if special is None:
            special = _bos_eos_special(model, options)
        lower = options.lower_case
        if lower is None:
            # Models like BERT, such as ALBERT, expect lower-case letters. The file's
            # own rules do not always produce them.
            words = model.pieces_of(PieceType.NORMAL)
            lower = like_bert and not keeps_case(words)
        return SentencePiece(model, special, lower_case=lower)
    except SentencePieceError as error:
        raise ModelLoadError(
            f"the model's tokenizer {name} cannot be used: {error}"
        ) from None


def _bert_like_special(
    model: SentencePieceModel, options: TextOptions
) -> Special | None:
    """Return BERT's special tokens if the pieces include [CLS] and [SEP]."""
    if options.add_bos is not None or options.add_eos is not None:
        return None
    if "[CLS]" not in model.pieces or "[SEP]" not in model.pieces:
        return None
    cls = (model.pieces.index("[CLS]"),)
    sep = (model.pieces.index("[SEP]"),)
    return Special(cls, sep, sep, _pad_number(model), model.unknown)


def _bos_eos_special(model: SentencePieceModel, options: TextOptions) -> Special:
    """Return the special tokens that ``add_bos`` and ``add_eos`` ask for."""
    first = _optional_piece("add_bos", options.add_bos, model.bos)
    last = _optional_piece("add_eos", options.add_eos, model.eos)
    return Special(first, last, last, _pad_number(model), model.unknown)


def _optional_piece(
    key: str, enabled: bool | None, number: int | None
) -> tuple[int, ...]:
    if not enabled:
        return ()
    if number is None:
        raise ModelLoadError(
            f"model.toml: text.{key} is true, but the tokenizer has no such piece"
        )
    return (number,)


def _pad_number(model: SentencePieceModel) -> int:
    if model.pad is not None:
        return model.pad
    if "[PAD]" in model.pieces:
        return model.pieces.index("[PAD]")
    return 0


def _regex(delimiter: str, content: bytes, options: TextOptions) -> Tokenizer:
    """Build a regex tokenizer.

    A vocabulary line is "word number" or only a word.
    """
    pairs: dict[str, int] = {}
    line_count = 0
    for line in content.decode("utf-8", errors="replace").split("\n"):
        if not line:
            continue
        line_count += 1
        # A word may contain spaces, so the last space separates it from its number.
        word, _, number = line.rstrip("\r").rpartition(" ")
        if number.isdecimal() and len(number) < 10:
            pairs[word] = int(number)
    vocabulary = pairs if len(pairs) > 0.9 * line_count else _numbered(content)
    try:
        return RegexWords(delimiter, vocabulary, lower_case=bool(options.lower_case))
    except ValueError as error:
        raise ModelLoadError(f"the model's tokenizer cannot be used: {error}") from None


def _wordpiece(content: bytes, facts: ModelFacts, options: TextOptions) -> WordPiece:
    vocabulary = _numbered(content)
    settings = tokenizer_settings(facts)
    name = settings.tokenizer_class
    reject_other_words(name, settings.names, settings.padding_side)
    if name == "SplinterTokenizer":
        raise ModelLoadError(
            "the model's tokenizer is Splinter's, which needs its tokenizer.json: save "
            "it with transformers' AutoTokenizer"
        )
    lower = settings.lower_case if options.lower_case is None else options.lower_case
    if lower is None:
        lower = not keeps_case(vocabulary)
    added = [token for token in settings.added if token.content not in _BERT_TOKENS]
    if len(added) > MAX_TOKENS:
        raise ModelLoadError(
            f"the model's tokenizer has {len(added):,} added tokens, more than "
            f"{MAX_TOKENS:,}: give it as tokenizer.json, for the tokenizers library"
        )
    return WordPiece(
        vocabulary,
        settings.complete(_bert_special(vocabulary), vocabulary.get),
        lower_case=lower,
        strip_accents=settings.strip_accents,
        cjk=settings.cjk is not False,
        added=added,
    )


def _bert_special(vocabulary: Mapping[str, int]) -> Special:
    for token in _REQUIRED_BERT_TOKENS:
        if token not in vocabulary:
            raise ModelLoadError(
                f"the model's vocabulary has no {token}: it is not one of BERT's"
            )
    cls = (vocabulary["[CLS]"],)
    sep = (vocabulary["[SEP]"],)
    return Special(cls, sep, sep, vocabulary.get("[PAD]", 0), vocabulary["[UNK]"])


def _of_tokenizer_json(facts: ModelFacts, options: TextOptions) -> Tokenizer:
    path = facts.beside("tokenizer.json")
    if path is None:
        raise ModelLoadError(
            "model.toml: text.tokenizer is huggingface, but there is no tokenizer.json "
            "beside the model"
        )
    content = facts.read_beside(path, MAX_TOKENIZER_BYTES)
    settings = tokenizer_settings(facts)
    settings = _with_class_in_use(content, settings)
    reason = f'text.tokenizer is "{options.tokenizer}"'
    if options.tokenizer != "huggingface":
        try:
            tokenizer = _bert_pipeline(content, settings)
        except _NeedsLibraryError as error:
            reason = str(error)
        else:
            facts.weights["tokenizer"] = _weight(content)
            return tokenizer
    library_tokenizer = _library_tokenizer(content, settings, reason)
    facts.weights["tokenizer"] = _LIBRARY_SHARE * len(content)
    return library_tokenizer


def _with_class_in_use(
    content: bytes, settings: TokenizerSettings
) -> TokenizerSettings:
    """Return the settings with the class that transformers uses for the document.

    Raises:
        MetadataError: it builds another tokenizer than the document's.
    """
    if settings.tokenizer_class in FIXED_WORDS:
        reject_other_words(
            settings.tokenizer_class, settings.names, settings.padding_side
        )
    if settings.tokenizer_class not in CLASSES:
        return settings
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return settings  # the caller reports it
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict):
        return settings
    if reads_as_it_is(settings.tokenizer_class, document):
        return settings._replace(tokenizer_class=GENERIC)
    reject_other_model(
        settings.tokenizer_class, document, is_registered=settings.is_registered
    )
    listed = document.get("added_tokens")
    in_file = []
    for entry in listed if isinstance(listed, list) else ():
        token = added_token(entry)
        if token is not None:
            in_file.append(token)
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, (dict, list)):
        reject_other_numbers(
            settings.tokenizer_class, vocabulary, in_file, settings.added
        )
    return settings


def _library_tokenizer(
    content: bytes, settings: TokenizerSettings, reason: str
) -> LibraryTokenizer:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise ModelLoadError(
            f"this model's tokenizer.json needs the tokenizers library ({reason}): "
            "pip install 'pocketserve[text]', on Termux pkg install rust first"
        ) from None
    try:
        document = with_class_settings(content.decode("utf-8"), settings)
        library = Library.from_str(document)
        for part in (library.normalizer, library.pre_tokenizer):
            state = None if part is None else json.loads(part.__getstate__())
            for pattern in patterns_in(state):
                check_pattern(pattern)
        return LibraryTokenizer(library, settings)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ModelLoadError(
            f"tokenizer.json beside the model cannot be used: {str(error)[:200]}"
        ) from None


class _NeedsLibraryError(Exception):
    """Our own code can't run this ``tokenizer.json``.

    The text names the key.
    """


def _bert_pipeline(content: bytes, settings: TokenizerSettings) -> WordPiece:
    """Build BERT's pipeline from a ``tokenizer.json``.

    Raises:
        _NeedsLibraryError: it describes another pipeline.
    """
    parts = _read_document(content)
    apply_class_settings(parts, settings)
    model, normal = _bert_parts(parts)
    vocabulary = _bert_vocabulary(model)
    prefix = model.get("continuing_subword_prefix", "##")
    if not isinstance(prefix, str) or len(prefix) > MAX_PREFIX_CHARS:
        raise _NeedsLibraryError("model.continuing_subword_prefix")
    max_word_chars = model.get("max_input_chars_per_word", MAX_WORD_CHARS)
    if type(max_word_chars) is not int:
        raise _NeedsLibraryError("model.max_input_chars_per_word")
    added = _added_tokens(parts.get("added_tokens"), settings)
    special = _document_special(parts, vocabulary)
    numbers = {token.content: token.number for token in added}
    numbers.update(vocabulary)
    reject_other_frame(settings.tokenizer_class, special, settings.names, numbers.get)
    complete = settings.complete(
        special, numbers.get, parts.get("padding"), parts.get("truncation")
    )
    accents = normal.get("strip_accents")
    return WordPiece(
        vocabulary,
        complete,
        lower_case=bool(normal.get("lowercase", True)),
        strip_accents=accents if isinstance(accents, bool) else None,
        clean=bool(normal.get("clean_text", True)),
        cjk=bool(normal.get("handle_chinese_chars", True)),
        prefix=prefix,
        max_word_chars=max_word_chars,
        added=_splitting_tokens(added, special),
    )


def _read_document(content: bytes) -> dict[str, Any]:
    """Parse a ``tokenizer.json``; return a mapping.

    It is empty if the document is no mapping.
    """
    if len(content) > MAX_JSON_BYTES:
        raise _NeedsLibraryError("it is large")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(
            f"tokenizer.json beside the model cannot be read: {str(error)[:200]}"
        ) from None
    if isinstance(document, dict):
        return document
    return {}


def _bert_parts(parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the model and the normalizer if their types are BERT's."""
    model = parts.get("model") or {}
    normal = parts.get("normalizer") or {}
    split = parts.get("pre_tokenizer") or {}
    _expect_type("model", model, "WordPiece", default="WordPiece")
    _expect_type("normalizer", normal, "BertNormalizer")
    _expect_type("pre_tokenizer", split, "BertPreTokenizer")
    return model, normal


def _expect_type(
    name: str, part: object, kind: str, default: str | None = None
) -> None:
    actual = None
    if isinstance(part, dict):
        actual = part.get("type", default)
    if actual != kind:
        raise _NeedsLibraryError(f"{name}.type = {str(actual)!r:.60}")


def _bert_vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = model.get("vocab")
    required = set(_REQUIRED_BERT_TOKENS)
    if not isinstance(vocabulary, dict) or not required <= vocabulary.keys():
        raise _NeedsLibraryError("model.vocab has no [CLS], [SEP] and [UNK]")
    for number in vocabulary.values():
        if type(number) is not int or not 0 <= number < 1 << 31:
            raise _NeedsLibraryError("model.vocab has other numbers")
    if model.get("unk_token") != "[UNK]":
        raise _NeedsLibraryError("model.unk_token")
    return vocabulary


def _document_special(
    parts: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> Special:
    """Return the special tokens, with those of the post-processor around the text."""
    special = _bert_special(vocabulary)
    processor = parts.get("post_processor")
    if processor is None:
        return special
    try:
        around = special_of(processor)
    except UnsupportedProcessorError as error:
        raise _NeedsLibraryError(str(error)) from None
    return around._replace(pad=special.pad, unknown=special.unknown)


def _splitting_tokens(
    added: Sequence[AddedToken], special: Special
) -> list[AddedToken]:
    """Return the added tokens that a user's text may contain."""
    special_numbers = {*special.first, *special.middle, *special.last}
    special_numbers |= {special.pad, special.unknown}
    tokens = []
    for token in added:
        if token.number in special_numbers or token.content in _BERT_TOKENS:
            continue
        tokens.append(token)
    return tokens


def _added_tokens(listed: object, settings: TokenizerSettings) -> list[AddedToken]:
    """Return the added tokens of ``tokenizer.json`` and of the settings."""
    entries = listed if isinstance(listed, list) else []
    if len(entries) > MAX_TOKENS:
        raise _NeedsLibraryError(f"added_tokens has more than {MAX_TOKENS:,} entries")
    by_content: dict[str, AddedToken] = {}
    for entry in entries:
        token = added_token(entry)
        if token is None:
            raise _NeedsLibraryError("added_tokens has entries of another form")
        by_content[token.content] = token
    for token in settings.added:
        by_content.setdefault(token.content, token)
    return list(by_content.values())


class LibraryTokenizer:
    """Run any ``tokenizer.json`` with the ``tokenizers`` library."""

    def __init__(self, library: Any, settings: TokenizerSettings) -> None:
        _bound_work(library)
        padding = library.padding
        truncation = library.truncation
        library.no_padding()
        library.no_truncation()
        _add_missing(library, settings.added)
        self._library = library
        around = _library_special(library)
        reject_other_frame(
            settings.tokenizer_class, around, settings.names, library.token_to_id
        )
        special = around._replace(
            pad=self._number("[PAD]", "<pad>"), unknown=self._number("[UNK]", "<unk>")
        )
        self.special = settings.complete(
            special, library.token_to_id, padding, truncation
        )

    def tokens(self, text: str) -> Iterator[Token]:
        try:
            # Unlike encode, encode_batch releases the GIL: a file's regular expressions
            # may run for minutes.
            encoded = self._library.encode_batch([text], add_special_tokens=False)[0]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A Rust panic is not an Exception and would end the request's thread.
            raise invalid_input(
                f"the model's tokenizer cannot take this text: {str(error)[:200]}"
            ) from None
        return _tokens_of(encoded)

    def _number(self, *names: str) -> int:
        for name in names:
            number: int | None = self._library.token_to_id(name)
            if number is not None:
                return number
        return 0


def _bound_work(library: Any) -> None:
    """Limit the work that a hostile ``tokenizer.json`` can cause."""
    normalizer = library.normalizer
    if normalizer is not None:
        growth = _growth(json.loads(normalizer.__getstate__()))
        if growth > MAX_GROWTH:
            raise ModelLoadError(
                f"tokenizer.json replaces texts by more than {MAX_GROWTH} times longer ones"
            )
    # Splitting a word costs its length squared.
    limit = getattr(library.model, "max_input_chars_per_word", None)
    if limit is not None:
        library.model.max_input_chars_per_word = min(limit, WORD_CHARS_LIMIT)


def _library_special(library: Any) -> Special:
    processor = library.post_processor
    state = None if processor is None else json.loads(processor.__getstate__())
    try:
        return special_of(state)
    except UnsupportedProcessorError as error:
        raise ModelLoadError(
            f"tokenizer.json beside the model cannot be used: {error} is not supported"
        ) from None


def _tokens_of(encoded: Any) -> Iterator[Token]:
    """Yield the tokens of an encoding of the library."""
    before = None
    rows = zip(encoded.ids, encoded.offsets, encoded.word_ids, strict=True)
    for number, (start, end), word in rows:
        kind = Token
        if word is not None and word == before:
            kind = InnerToken
        yield kind(number, start, end)
        before = word


def _add_missing(library: Any, tokens: Sequence[AddedToken]) -> None:
    """Add the tokens that only ``tokenizer_config.json`` has, as transformers does."""
    from tokenizers import AddedToken as LibraryToken

    for token in tokens:
        if library.token_to_id(token.content) is not None:
            continue
        flags = token._asdict()
        number = flags.pop("number")
        library.add_tokens([LibraryToken(**flags)])
        if library.token_to_id(token.content) != number:
            raise ModelLoadError(
                f"tokenizer_config.json beside the model numbers {token.content!r:.60} "
                "unlike tokenizer.json"
            )


def _growth(normalizer: Any) -> int:
    """Return how much ``Replace`` steps may lengthen a text."""
    if not isinstance(normalizer, dict):
        return 1
    growth = 1
    if normalizer.get("type") == "Replace":
        growth = max(1, len(str(normalizer.get("content", ""))))
    for part in normalizer.get("normalizers", ()):
        growth *= _growth(part)
    return growth


def _weight(content: bytes) -> int:
    """Estimate a vocabulary's memory: its text and a mapping with its pieces."""
    return len(content) + _PIECE_BYTES * max(content.count(b"\n"), content.count(b":"))


def _numbered(content: bytes) -> dict[str, int]:
    """Return a vocabulary with one token per line, numbered from 0."""
    lines = content.decode("utf-8-sig", errors="replace").split("\n")
    numbers = {}
    for number, line in enumerate(lines):
        token = line.rstrip("\r")
        if token:
            numbers[token] = number
    return numbers
