"""Selection of a model's tokenizer: the manifest's, else that of its metadata, else of the files beside it.

``tokenizer.json`` and ``vocab.txt`` are those of Hugging Face. BERT's pipeline and SentencePiece's models run in our
own code; any other needs the ``tokenizers`` library (the ``text`` extra).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import (
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
from pocketserve.tasks.text.hugging_face.post_processor import (
    UnsupportedProcessorError,
    special_of,
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
MAX_GROWTH = 256  # of a text, by what is put instead of parts of it
MAX_PREFIX_CHARS = 16
_BERT_TOKENS = frozenset(
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
)  # text if they are written out in a text
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
    name = options.vocabulary or (
        "spiece.model" if options.tokenizer == "sentencepiece" else "vocab.txt"
    )
    path = facts.beside(name)
    if path is None:
        raise ModelLoadError(
            f"model.toml: text.vocabulary {name} is not beside the model"
        )
    content = facts.read_beside(path, MAX_VOCABULARY_BYTES)
    return _build(
        options.tokenizer,
        name,
        content,
        options.delimiter or r"[^\w']+",
        facts,
        options,
    )


def tokenizer_unit(facts: ModelFacts) -> TokenizerUnit | None:
    """Return the tokenizer among the metadata's process units, of the graph or of an input."""
    metadata = facts.metadata
    units = [
        *metadata.input_process_units,
        *(unit for tensor in metadata.inputs for unit in tensor.process_units),
    ]
    return next((unit for unit in units if isinstance(unit, TokenizerUnit)), None)


def _of_metadata(
    facts: ModelFacts, unit: TokenizerUnit, options: TextOptions
) -> Tokenizer:
    pieces = isinstance(unit, SentencePieceTokenizer)
    files = (
        unit.model_files
        if isinstance(unit, SentencePieceTokenizer)
        else unit.vocab_files
    )
    if not files:
        raise ModelLoadError(
            "the model's metadata names a tokenizer, but no file of it; name text.tokenizer and text.vocabulary in "
            "model.toml"
        )
    try:
        limit = MAX_MODEL_BYTES if pieces else MAX_ASSOCIATED_BYTES
        (content,) = facts.associated_files([files[0].name], limit)
    except DamagedFileError as error:
        raise ModelLoadError(
            f"the model's vocabulary cannot be read: {error}"
        ) from None
    delimiter = unit.delimiter if isinstance(unit, RegexTokenizer) else ""
    return _build(_KINDS[type(unit)], files[0].name, content, delimiter, facts, options)


def _build(
    kind: str | None,
    name: str,
    content: bytes,
    delimiter: str,
    facts: ModelFacts,
    options: TextOptions,
) -> Tokenizer:
    """Build a tokenizer of a vocabulary file: WordPiece, unless ``kind`` says otherwise."""
    if kind == "sentencepiece":
        tokenizer = sentencepiece_of(content, name, options)
        facts.weights["tokenizer"] = len(content) + _PIECE_BYTES * len(
            tokenizer.model.pieces
        )
        return tokenizer
    if content.count(b"\n") > MAX_LINES:
        raise ModelLoadError(
            f"the model's vocabulary has more than {MAX_LINES:,} lines"
        )
    facts.weights["tokenizer"] = _weight(content)
    return (
        _regex(delimiter, content, options)
        if kind == "regex"
        else _wordpiece(content, facts, options)
    )


def sentencepiece_of(content: bytes, name: str, options: TextOptions) -> SentencePiece:
    """Set up the tokenizer of the ``.model`` file ``name``."""
    try:
        model = read_model(content)
        words = [
            p
            for p, kind in zip(model.pieces, model.types, strict=True)
            if kind == PieceType.NORMAL
        ]
        special, like_bert = _sentencepiece_special(model, options)
        # Models like BERT, such as ALBERT, were trained on small letters, which the file's rules do not always make.
        lower = (
            like_bert and not keeps_case(words)
            if options.lower_case is None
            else options.lower_case
        )
        return SentencePiece(model, special, lower_case=lower)
    except SentencePieceError as error:
        raise ModelLoadError(
            f"the model's tokenizer {name} cannot be used: {error}"
        ) from None


def _sentencepiece_special(
    model: SentencePieceModel, options: TextOptions
) -> tuple[Special, bool]:
    """Return what stands around a text, and whether that is as with BERT: where the pieces have [CLS] and [SEP]."""
    numbers = {
        name: model.pieces.index(name)
        for name in ("[CLS]", "[SEP]", "[PAD]")
        if name in model.pieces
    }
    pad = numbers.get("[PAD]", 0) if model.pad is None else model.pad
    if (
        options.add_bos is None
        and options.add_eos is None
        and {"[CLS]", "[SEP]"} <= numbers.keys()
    ):
        cls, sep = (numbers["[CLS]"],), (numbers["[SEP]"],)
        return Special(cls, sep, sep, pad, model.unknown), True
    around = []
    for key, enabled, number in (
        ("add_bos", options.add_bos, model.bos),
        ("add_eos", options.add_eos, model.eos),
    ):
        if enabled and number is None:
            raise ModelLoadError(
                f"model.toml: text.{key} is true, but the tokenizer has no such piece"
            )
        around.append((number,) if enabled and number is not None else ())
    first, last = around
    return Special(first, last, last, pad, model.unknown), False


def _regex(delimiter: str, content: bytes, options: TextOptions) -> Tokenizer:
    # Lines are "word number", or only the word. Words may hold anything, so only the last space of a line parts it.
    lines = [
        line.rstrip("\r").rpartition(" ")
        for line in content.decode("utf-8", errors="replace").split("\n")
        if line
    ]
    pairs = {
        word: int(number)
        for word, _, number in lines
        if number.isdecimal() and len(number) < 10
    }
    vocabulary = pairs if len(pairs) > 0.9 * len(lines) else _numbered(content)
    try:
        return RegexWords(delimiter, vocabulary, lower_case=bool(options.lower_case))
    except ValueError as error:
        raise ModelLoadError(f"the model's tokenizer cannot be used: {error}") from None


def _wordpiece(content: bytes, facts: ModelFacts, options: TextOptions) -> WordPiece:
    vocabulary = _numbered(content)
    settings = tokenizer_settings(facts)
    lower = settings.lower_case if options.lower_case is None else options.lower_case
    added = [token for token in settings.added if token.content not in _BERT_TOKENS]
    return WordPiece(
        vocabulary,
        settings.complete(_bert_special(vocabulary), vocabulary.get),
        lower_case=not keeps_case(vocabulary) if lower is None else lower,
        strip_accents=settings.strip_accents,
        cjk=settings.cjk is not False,
        added=_own_added(added),
    )


def _own_added(tokens: Sequence[AddedToken]) -> Sequence[AddedToken]:
    if len(tokens) > MAX_TOKENS:
        raise ModelLoadError(
            f"the model's tokenizer has {len(tokens):,} added tokens, more than {MAX_TOKENS:,}: "
            "give it as tokenizer.json, for the tokenizers library"
        )
    return tokens


def _bert_special(vocabulary: Mapping[str, int]) -> Special:
    missing = [
        token for token in ("[CLS]", "[SEP]", "[UNK]") if token not in vocabulary
    ]
    if missing:
        raise ModelLoadError(
            f"the model's vocabulary has no {missing[0]}: it is not one of BERT's"
        )
    cls, sep = (vocabulary["[CLS]"],), (vocabulary["[SEP]"],)
    return Special(cls, sep, sep, vocabulary.get("[PAD]", 0), vocabulary["[UNK]"])


def _of_tokenizer_json(facts: ModelFacts, options: TextOptions) -> Tokenizer:
    path = facts.beside("tokenizer.json")
    if path is None:
        raise ModelLoadError(
            "model.toml: text.tokenizer is huggingface, but there is no tokenizer.json beside the model"
        )
    content = facts.read_beside(path, MAX_TOKENIZER_BYTES)
    settings = tokenizer_settings(facts)
    reason = f'text.tokenizer is "{options.tokenizer}"'
    if options.tokenizer != "huggingface":
        bert = _bert_pipeline(content, settings)
        if isinstance(bert, WordPiece):
            facts.weights["tokenizer"] = _weight(content)
            return bert
        reason = bert
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise ModelLoadError(
            f"this model's tokenizer.json needs the tokenizers library ({reason}): pip install 'pocketserve[text]', "
            "on Termux pkg install rust first"
        ) from None
    try:
        document = _with_prefix_space(content.decode("utf-8"), settings)
        library = Library.from_str(document)
        for part in (library.normalizer, library.pre_tokenizer):
            for pattern in patterns_in(
                None if part is None else json.loads(part.__getstate__())
            ):
                check_pattern(pattern)
        tokenizer = LibraryTokenizer(library, settings)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ModelLoadError(
            f"tokenizer.json beside the model cannot be used: {str(error)[:200]}"
        ) from None
    facts.weights["tokenizer"] = _LIBRARY_SHARE * len(content)
    return tokenizer


def _with_prefix_space(text: str, settings: TokenizerSettings) -> str:
    """Return a ``tokenizer.json`` whose byte-level splitting follows ``add_prefix_space`` of the settings.

    Source: huggingface/transformers, tokenization_roberta.py and tokenization_gpt2.py, which build it anew.
    """
    if settings.prefix_space is None or not settings.sets_prefix_space:
        return text
    document = json.loads(text)
    split = document.get("pre_tokenizer")
    parts = [split, *(split.get("pretokenizers") or ())] if split else []
    for part in parts:
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = settings.prefix_space
    return json.dumps(document)


def _bert_pipeline(content: bytes, settings: TokenizerSettings) -> WordPiece | str:
    """Return BERT's pipeline as a ``tokenizer.json`` describes it, or the key that needs the library."""
    if len(content) > MAX_JSON_BYTES:
        return "it is large"
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(
            f"tokenizer.json beside the model cannot be read: {str(error)[:200]}"
        ) from None
    parts = document if isinstance(document, dict) else {}
    model, normal, split = (
        parts.get(key) or {} for key in ("model", "normalizer", "pre_tokenizer")
    )
    expected = (
        ("model.type", model, "WordPiece", "WordPiece"),
        ("normalizer.type", normal, None, "BertNormalizer"),
        ("pre_tokenizer.type", split, None, "BertPreTokenizer"),
    )
    for key, part, default, kind in expected:
        actual = part.get("type", default) if isinstance(part, dict) else None
        if actual != kind:
            return f"{key} = {str(actual)!r:.60}"
    vocabulary = model.get("vocab")
    prefix = model.get("continuing_subword_prefix", "##")
    max_word_chars = model.get("max_input_chars_per_word", MAX_WORD_CHARS)
    if (
        not isinstance(vocabulary, dict)
        or not {"[CLS]", "[SEP]", "[UNK]"} <= vocabulary.keys()
    ):
        return "model.vocab has no [CLS], [SEP] and [UNK]"
    if not all(
        type(number) is int and 0 <= number < 1 << 31 for number in vocabulary.values()
    ):
        return "model.vocab has other numbers"
    if model.get("unk_token") != "[UNK]":
        return "model.unk_token"
    if not isinstance(prefix, str) or len(prefix) > MAX_PREFIX_CHARS:
        return "model.continuing_subword_prefix"
    if type(max_word_chars) is not int:
        return "model.max_input_chars_per_word"
    added = _added_tokens(parts.get("added_tokens"), settings)
    if isinstance(added, str):
        return added
    try:
        special = _bert_special(vocabulary)
        if parts.get("post_processor") is not None:
            around = special_of(parts["post_processor"])
            special = around._replace(pad=special.pad, unknown=special.unknown)
    except UnsupportedProcessorError as error:
        return str(error)
    names = {**{token.content: token.number for token in added}, **vocabulary}
    overrides = settings.of_bert_class
    accents = normal.get("strip_accents")
    lower = normal.get("lowercase", True)
    if overrides and settings.lower_case is not None:
        lower = settings.lower_case
    if overrides and settings.strip_accents is not None:
        accents = settings.strip_accents
    cjk = (
        settings.cjk
        if overrides and settings.cjk is not None
        else normal.get("handle_chinese_chars", True)
    )
    special_numbers = {
        *special.first,
        *special.middle,
        *special.last,
        special.pad,
        special.unknown,
    }
    splitting = [
        token
        for token in added
        if token.number not in special_numbers and token.content not in _BERT_TOKENS
    ]
    return WordPiece(
        vocabulary,
        settings.complete(
            special, names.get, parts.get("padding"), parts.get("truncation")
        ),
        lower_case=bool(lower),
        strip_accents=accents if isinstance(accents, bool) else None,
        clean=bool(normal.get("clean_text", True)),
        cjk=bool(cjk),
        prefix=prefix,
        max_word_chars=max_word_chars,
        added=splitting,
    )


def _added_tokens(
    listed: object, settings: TokenizerSettings
) -> list[AddedToken] | str:
    """Return the added tokens of both files, or the key that needs the library."""
    entries = listed if isinstance(listed, list) else []
    if len(entries) > MAX_TOKENS:
        return f"added_tokens has more than {MAX_TOKENS:,} entries"
    by_content: dict[str, AddedToken] = {}
    for entry in entries:
        token = added_token(entry)
        if token is None:
            return "added_tokens has entries of another form"
        by_content[token.content] = token
    for token in settings.added:
        by_content.setdefault(token.content, token)
    return list(by_content.values())


class LibraryTokenizer:
    """Any ``tokenizer.json``, through a ``tokenizers.Tokenizer`` of the library."""

    def __init__(self, library: Any, settings: TokenizerSettings) -> None:
        normalizer = library.normalizer
        if (
            normalizer is not None
            and _growth(json.loads(normalizer.__getstate__())) > MAX_GROWTH
        ):
            raise ModelLoadError(
                f"tokenizer.json replaces texts by more than {MAX_GROWTH} times longer ones"
            )
        if hasattr(
            library.model, "max_input_chars_per_word"
        ):  # cutting a word up costs its length squared
            library.model.max_input_chars_per_word = min(
                library.model.max_input_chars_per_word, WORD_CHARS_LIMIT
            )
        padding, truncation = library.padding, library.truncation
        library.no_padding()
        library.no_truncation()
        _add_missing(library, settings.added)
        self._library = library
        processor = library.post_processor
        try:
            special = special_of(
                None if processor is None else json.loads(processor.__getstate__())
            )
        except UnsupportedProcessorError as error:
            raise ModelLoadError(
                f"tokenizer.json beside the model cannot be used: {error} is not supported"
            ) from None
        special = special._replace(
            pad=self._number("[PAD]", "<pad>"), unknown=self._number("[UNK]", "<unk>")
        )
        self.special = settings.complete(
            special, library.token_to_id, padding, truncation
        )

    def tokens(self, text: str) -> Iterator[Token]:
        try:
            # Unlike encode, it lets other threads go on meanwhile: a file's regular expressions may take for ever.
            encoded = self._library.encode_batch([text], add_special_tokens=False)[0]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # what Rust calls a panic is no Exception, and would end the request's thread
            raise invalid_input(
                f"the model's tokenizer cannot take this text: {str(error)[:200]}"
            ) from None
        return _tokens_of(encoded)

    def _number(self, *names: str) -> int:
        numbers = (self._library.token_to_id(name) for name in names)
        return next((number for number in numbers if number is not None), 0)


def _tokens_of(encoded: Any) -> Iterator[Token]:
    """Yield the tokens of an encoding of the library."""
    before = None
    rows = zip(encoded.ids, encoded.offsets, encoded.word_ids, strict=True)
    for number, (start, end), word in rows:
        kind = InnerToken if word is not None and word == before else Token
        yield kind(number, start, end)
        before = word


def _add_missing(library: Any, tokens: Sequence[AddedToken]) -> None:
    """Add the tokens of ``tokenizer_config.json`` that a ``tokenizer.json`` lacks, as transformers does."""
    from tokenizers import AddedToken as LibraryToken

    for token in tokens:
        if library.token_to_id(token.content) is None:
            flags = token._asdict()
            number = flags.pop("number")
            library.add_tokens([LibraryToken(**flags)])
            if library.token_to_id(token.content) != number:
                raise ModelLoadError(
                    f"tokenizer_config.json beside the model numbers {token.content!r:.60} unlike tokenizer.json"
                )


def _growth(normalizer: Any) -> int:
    """Return how many times longer a text may become by a normalizer's ``Replace`` parts, one after the other."""
    if not isinstance(normalizer, dict):
        return 1
    growth = (
        max(1, len(str(normalizer.get("content", ""))))
        if normalizer.get("type") == "Replace"
        else 1
    )
    for part in normalizer.get("normalizers", ()):
        growth *= _growth(part)
    return growth


def _weight(content: bytes) -> int:
    """Estimate the memory of a vocabulary: its text, and each piece as a key of a mapping."""
    return len(content) + _PIECE_BYTES * max(content.count(b"\n"), content.count(b":"))


def _numbered(content: bytes) -> dict[str, int]:
    """Return a vocabulary with one token a line, numbered from 0."""
    lines = content.decode("utf-8-sig", errors="replace").split("\n")
    return {
        line.rstrip("\r"): number
        for number, line in enumerate(lines)
        if line.rstrip("\r")
    }
