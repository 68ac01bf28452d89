"""Compare a ``tokenizer.json`` with the tokenizer that its class in transformers builds.

A class takes the vocabulary of the file and builds the rest itself, so a file of another
kind gives other tokens. Source: huggingface/transformers 5.24,
``models/*/tokenization_*.py`` and ``models/auto/tokenization_auto.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pocketserve.tasks.model_facts import MetadataError
from pocketserve.tasks.text.hugging_face.added_tokens import AddedToken
from pocketserve.tasks.text.tokens import Special

GENERIC: Final = "TokenizersBackend"
"""The class that takes ``tokenizer.json`` as it is."""

_WAY_OUT: Final = (
    "correct it, or write PreTrainedTokenizerFast to use tokenizer.json as it is"
)


class SpecialFrame(NamedTuple):
    """The special tokens that a class puts around texts, whatever the file says.

    Attributes:
        before: the number of tokens before a text.
        single: token types of the parts of a single text.
        pair: token types of the parts of a pair.
        names: the role and default name of the first and the last token; the role is
            empty if there is none.
    """

    before: int
    single: tuple[int, ...]
    pair: tuple[int, ...]
    names: tuple[tuple[str, str], tuple[str, str]]


class TokenizerClass(NamedTuple):
    """A tokenizer class of transformers.

    Attributes:
        model: the algorithm of its vocabulary.
        frame: its special tokens; None if it takes those of ``tokenizer.json``.
        lowers: whether it makes small letters unless ``do_lower_case`` is false.
        steps: the steps before the algorithm that tell classes apart, as ``_TELLING``.
        unknown: the number of the unknown token; None if the file decides.
        pad: the default name of the token that fills an input; empty for none.
    """

    model: str
    frame: SpecialFrame | None = None
    lowers: bool = False
    steps: frozenset[str] = frozenset()
    unknown: int | None = None
    pad: str = ""


_TELLING: Final = frozenset(
    (
        *("BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "NFC", "NFKD"),
        *("Split", "StripAccents", "WhitespaceSplit"),
    )
)
"""Types of normalizers and pre-tokenizers that are compared."""

_CLS_SEP = (("cls", "[CLS]"), ("sep", "[SEP]"))
_BOS_EOS = (("cls", "<s>"), ("sep", "</s>"))
_BERT = SpecialFrame(1, (0, 0, 0), (0, 0, 0, 1, 1), _CLS_SEP)
_ROBERTA = SpecialFrame(1, (0,) * 3, (0,) * 6, _BOS_EOS)
_DEBERTA = _ROBERTA._replace(names=_CLS_SEP)
_FUNNEL = SpecialFrame(
    1, (2, 0, 0), (2, 0, 0, 1, 1), (("cls", "<cls>"), ("sep", "<sep>"))
)
_MBART = SpecialFrame(0, (0,) * 3, (0,) * 4, (("", ""), ("", "")))
_XLNET = SpecialFrame(0, (0, 0, 2), (0, 0, 1, 1, 2), (("", ""), ("cls", "<cls>")))
_NOTHING = SpecialFrame(0, (0,), (0, 1), (("", ""), ("", "")))
_T5 = SpecialFrame(0, (0, 0), (0,) * 4, (("", ""), ("eos", "</s>")))

_WORDS = frozenset(("BertPreTokenizer",))
_BYTES = frozenset(("ByteLevel",))
_SPACES = frozenset(("Metaspace",))
_SPLIT_SPACES = _SPACES | {"WhitespaceSplit"}
_WITHOUT_ACCENTS = _SPLIT_SPACES | {"NFKD", "StripAccents"}

_BERT_CLASS = TokenizerClass("WordPiece", _BERT, lowers=True, steps=_WORDS, pad="[PAD]")
_BPE = TokenizerClass("BPE", steps=_BYTES)
_LLAMA_CLASS = _BPE._replace(steps=_SPACES)
_ROBERTA_CLASS = _BPE._replace(frame=_ROBERTA, pad="<pad>")
_UNIGRAM = TokenizerClass("Unigram", steps=_SPLIT_SPACES, pad="<pad>")

CLASSES: Final[Mapping[str, TokenizerClass]] = {
    "AlbertTokenizer": _UNIGRAM._replace(
        lowers=True, steps=_WITHOUT_ACCENTS, unknown=1
    ),
    "BarthezTokenizer": _UNIGRAM._replace(steps=_SPACES | {"NFC"}, unknown=3),
    "BartTokenizer": _ROBERTA_CLASS,
    "BertTokenizer": _BERT_CLASS,
    "BigBirdTokenizer": _UNIGRAM._replace(frame=_BERT, steps=_SPACES),
    "BlenderbotTokenizer": _BPE._replace(pad="<pad>"),
    "CamembertTokenizer": _UNIGRAM._replace(frame=_ROBERTA),
    "CodeLlamaTokenizer": _LLAMA_CLASS,
    "CohereTokenizer": _BPE._replace(steps=_BYTES | {"Digits", "NFC"}, pad="<PAD>"),
    "DebertaTokenizer": _BPE._replace(frame=_DEBERTA, pad="[PAD]"),
    "DebertaV2Tokenizer": _UNIGRAM._replace(
        frame=_BERT, steps=_SPACES | {"NFC"}, pad="[PAD]"
    ),
    "DistilBertTokenizer": _BERT_CLASS,
    "ElectraTokenizer": _BERT_CLASS,
    "FunnelTokenizer": _BERT_CLASS._replace(frame=_FUNNEL, pad="<pad>"),
    "GemmaTokenizer": _BPE._replace(steps=frozenset(("Split",)), pad="<pad>"),
    "GPT2Tokenizer": _BPE,
    "GPTNeoXTokenizer": _BPE._replace(
        frame=_NOTHING, steps=_BYTES | {"NFC"}, pad="<|padding|>"
    ),
    "LayoutLMTokenizer": _BERT_CLASS,
    "LEDTokenizer": _ROBERTA_CLASS,
    "LlamaTokenizer": _LLAMA_CLASS,
    "LongformerTokenizer": _ROBERTA_CLASS,
    "LukeTokenizer": _ROBERTA_CLASS,
    "LxmertTokenizer": _BERT_CLASS,
    "MBartTokenizer": _UNIGRAM._replace(frame=_MBART, unknown=3),
    "MobileBertTokenizer": _BERT_CLASS,
    "MPNetTokenizer": _BERT_CLASS._replace(frame=_ROBERTA, pad="<pad>"),
    "MvpTokenizer": _ROBERTA_CLASS,
    "OpenAIGPTTokenizer": _BPE._replace(steps=_WORDS, lowers=True),
    "Qwen2Tokenizer": _BPE._replace(
        steps=_BYTES | {"NFC", "Split"}, pad="<|endoftext|>"
    ),
    "ReformerTokenizer": _BPE._replace(steps=_SPACES),
    "RemBertTokenizer": _UNIGRAM._replace(frame=_BERT, steps=_SPACES, unknown=2),
    "RobertaTokenizer": _ROBERTA_CLASS,
    "SqueezeBertTokenizer": _BERT_CLASS,
    "T5Tokenizer": _UNIGRAM._replace(frame=_T5, unknown=2),
    "XLMRobertaTokenizer": _UNIGRAM._replace(frame=_ROBERTA, unknown=3),
    "XLNetTokenizer": _UNIGRAM._replace(frame=_XLNET, steps=_WITHOUT_ACCENTS),
}

IN_PYTHON: Final = (
    "BertJapaneseTokenizer",
    "BertweetTokenizer",
    "BioGptTokenizer",
    "ByT5Tokenizer",
    "CanineTokenizer",
    "CTRLTokenizer",
    "EsmTokenizer",
    "FlaubertTokenizer",
    "FSMTTokenizer",
    "GPTNeoXJapaneseTokenizer",
    "MyT5Tokenizer",
    "PerceiverTokenizer",
    "PhobertTokenizer",
    "PLBartTokenizer",
    "ProphetNetTokenizer",
    "RoCBertTokenizer",
    "RoFormerTokenizer",
    "TapasTokenizer",
    "XLMTokenizer",
)
"""Classes that split texts by rules of their own, which are in none of their files."""

FIXED_WORDS: Final = ("ConvBertTokenizer", "LayoutLMv2Tokenizer", "SplinterTokenizer")
"""Classes without a row that put their special tokens around texts, whatever the file says."""

READS_CASE: Final = ("LayoutLMv2Tokenizer", "SplinterTokenizer")
"""Further classes that make small letters unless ``do_lower_case`` is false."""

FIXED_CASE: Final[Mapping[str, bool]] = {
    "DPRContextEncoderTokenizer": True,
    "DPRQuestionEncoderTokenizer": True,
    "DPRReaderTokenizer": True,
    "HerbertTokenizer": False,
    "OpenAIGPTTokenizer": True,
}
"""Whether a class makes small letters, whatever ``do_lower_case`` says."""

MODEL_TYPES: Final[Mapping[str, Sequence[str]]] = {
    "AlbertTokenizer": ("albert", "yoso"),
    "BarthezTokenizer": ("barthez",),
    "BertTokenizer": (
        *("align", "bert", "bros", "chinese_clip", "convbert", "distilbert"),
        *("electra", "ernie", "flava", "layoutlm", "megatron-bert", "nezha"),
        *("nomic_bert", "squeezebert", "vilt", "visual_bert"),
    ),
    "BigBirdTokenizer": ("big_bird",),
    "BlenderbotTokenizer": ("blenderbot",),
    "CamembertTokenizer": ("camembert",),
    "DebertaTokenizer": ("deberta",),
    "DebertaV2Tokenizer": ("deberta-v2",),
    "FunnelTokenizer": ("funnel",),
    "GemmaTokenizer": ("gemma", "gemma2", "gemma3", "gemma3_text", "t5gemma"),
    "GPT2Tokenizer": ("codegen", "gpt2", "gpt_neo", "gptj", "opt", "phi"),
    "GPTNeoXTokenizer": ("gpt_neox", "mamba", "mamba2", "mpt", "olmo", "rwkv"),
    "LEDTokenizer": ("led",),
    "LukeTokenizer": ("luke",),
    "LxmertTokenizer": ("lxmert",),
    "MBartTokenizer": ("mbart",),
    "MobileBertTokenizer": ("mobilebert",),
    "MPNetTokenizer": ("mpnet",),
    "MvpTokenizer": ("mvp",),
    "OpenAIGPTTokenizer": ("openai-gpt",),
    "Qwen2Tokenizer": ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    "ReformerTokenizer": ("reformer",),
    "RemBertTokenizer": ("rembert",),
    "RobertaTokenizer": (
        *("bart", "bridgetower", "clap", "data2vec-text", "ibert", "lilt"),
        *("longformer", "mra", "roberta", "roberta-prelayernorm"),
    ),
    "SplinterTokenizer": ("splinter",),
    "T5Tokenizer": ("mt5", "switch_transformers", "t5"),
    "XLMRobertaTokenizer": ("xlm-roberta", "xmod"),
    "XLNetTokenizer": ("xlnet",),
    "RoFormerTokenizer": ("roformer",),
    GENERIC: (
        *("bigbird_pegasus", "gpt_bigcode", "jamba", "modernbert", "nemotron"),
        *("nystromformer", "olmo2", "pegasus_x", "persimmon", "phi3"),
        *("stablelm", "umt5", "xlm-roberta-xl"),
    ),
}
"""The class of a ``model_type`` where the files name none. ``GENERIC`` comes before the name in the files."""


def registered_class(model_type: object) -> str:
    """Return the class of a model's type; empty if none is known."""
    for name, model_types in MODEL_TYPES.items():
        if model_type in model_types:
            return name
    return ""


def class_in_use(declared: str, model_type: object) -> str:
    """Return the name of the class that transformers uses, without ``Fast``.

    Args:
        declared: the class that the files name; empty if they name none.
        model_type: that of ``config.json``.
    """
    registered = registered_class(model_type)
    if registered == GENERIC:
        return GENERIC
    return declared.removesuffix("Fast") or registered


def reject_python_class(name: str) -> None:
    """Raise if a class splits texts by rules of its own."""
    if name in IN_PYTHON:
        raise MetadataError(
            f"tokenizer_config.json beside the model has tokenizer_class = {name!r}, "
            "whose rules are not supported; write PreTrainedTokenizerFast if those of "
            "tokenizer.json are the same"
        )


def reject_other_model(
    name: str, document: Mapping[str, Any], *, is_registered: bool
) -> None:
    """Raise if a class builds another algorithm than that of ``tokenizer.json``.

    Args:
        name: the class.
        document: the content of ``tokenizer.json``.
        is_registered: whether the class is the one of the model's type. Its older files
            may have other steps, with the same effect.
    """
    rules = CLASSES.get(name)
    model = document.get("model")
    if rules is None or not isinstance(model, Mapping):
        return
    steps = _types_in(document.get("normalizer"))
    steps |= _types_in(document.get("pre_tokenizer"))
    kind = _kind_of(model)
    if kind != rules.model:
        raise _mismatch(name, f"is a class for {rules.model}, not for {kind}")
    if rules.unknown is not None and model.get("unk_id") != rules.unknown:
        raise _mismatch(name, "has another model.unk_id")
    if name == "DebertaV2Tokenizer" and "Punctuation" in steps:
        raise _mismatch(name, "splits at punctuation, as split_by_punct says")
    if is_registered:
        return
    steps &= _TELLING
    if rules is _LLAMA_CLASS and not steps:
        return  # older files put the space in front with the normalizer
    if steps != rules.steps:
        different = ", ".join(sorted(steps ^ rules.steps))
        raise _mismatch(name, f"differs in {different}")


def reject_other_frame(
    name: str,
    special: Special,
    names: Mapping[str, str],
    number_of: Callable[[str], int | None],
) -> None:
    """Raise if a class puts other special tokens around texts.

    Args:
        name: the class.
        special: the tokens of ``tokenizer.json``.
        names: special tokens that the files name, by role.
        number_of: returns a token's number; None if there is none.
    """
    rules = CLASSES.get(name)
    frame = None if rules is None else rules.frame
    if frame is None:
        return
    fits = len(special.first) == frame.before
    fits = fits and special.types_of_single() == frame.single
    if not special.pair_fault:
        fits = fits and special.types_of_pair() == frame.pair
    if not fits:
        raise _mismatch(name, "puts other special tokens around texts")
    ends = (special.first[:1], special.last[-1:])
    for (role, default), numbers in zip(frame.names, ends, strict=True):
        token = names.get(role, default)
        if role and numbers != (number_of(token),):
            raise _other_token(name, role, token)
    if frame is _ROBERTA:
        _reject_other_ends(name, ends, names, number_of)
    end = names.get("eos", "</s>")
    if frame is _MBART and special.last and special.last[0] != number_of(end):
        raise _other_token(name, "eos", end)
    separator = names.get("sep", "<sep>")
    if frame is _XLNET and special.last[:1] != (number_of(separator),):
        raise _other_token(name, "sep", separator)


def _reject_other_ends(
    name: str,
    ends: tuple[tuple[int, ...], tuple[int, ...]],
    names: Mapping[str, str],
    number_of: Callable[[str], int | None],
) -> None:
    """Raise if ``bos`` and ``eos``, which some classes put around texts, differ."""
    for role, numbers in zip(("bos", "eos"), ends, strict=True):
        token = names.get(role)
        if token is not None and numbers != (number_of(token),):
            raise _other_token(name, role, token)


def reject_other_words(
    name: str, names: Mapping[str, str], padding_side: str = ""
) -> None:
    """Raise if special tokens have other names than those of BERT's classes.

    Args:
        name: the class; Splinter's has another order of pairs if it pads on the left.
    """
    if name == "SplinterTokenizer" and padding_side == "left":
        raise MetadataError(
            'tokenizer_config.json beside the model has padding_side = "left", which '
            'is not supported with SplinterTokenizer; use "right"'
        )
    for role, usual in (("cls", "[CLS]"), ("sep", "[SEP]"), ("unk", "[UNK]")):
        token = names.get(role, usual)
        if token != usual:
            raise MetadataError(
                f"tokenizer_config.json or special_tokens_map.json beside the model has "
                f"{role}_token = {token!r:.40}, which is not supported with "
                f"{name or 'vocab.txt'}; use {usual!r}"
            )


def reject_other_numbers(
    name: str,
    vocabulary: Sequence[object] | Mapping[str, Any],
    in_file: Sequence[AddedToken],
    declared: Sequence[AddedToken],
) -> None:
    """Raise if a class numbers added tokens unlike the files.

    A class adds those of ``added_tokens_decoder`` behind the vocabulary, in their order,
    and forgets those that only ``tokenizer.json`` has.

    Args:
        name: the class.
        vocabulary: that of the model in ``tokenizer.json``.
        in_file: the added tokens of ``tokenizer.json``.
        declared: those of ``tokenizer_config.json``.
    """
    if name not in CLASSES or not declared:
        return
    words = _words_of(vocabulary)
    added = [token for token in declared if token.content not in words]
    added.sort(key=lambda token: token.number)
    names = {token.content for token in added}
    is_forgotten = any(
        token.content not in words and token.content not in names for token in in_file
    )
    expected = list(range(len(words), len(words) + len(added)))
    if is_forgotten or [token.number for token in added] != expected:
        raise MetadataError(
            "tokenizer_config.json beside the model has added_tokens_decoder, which "
            "numbers tokens unlike tokenizer.json; save both with one tokenizer"
        )


def _words_of(vocabulary: Sequence[object] | Mapping[str, Any]) -> set[object]:
    """Return the words; an entry of a list is a word and its score."""
    if isinstance(vocabulary, Mapping):
        return set(vocabulary)
    words: set[object] = set()
    for entry in vocabulary:
        if isinstance(entry, list) and entry and isinstance(entry[0], str):
            words.add(entry[0])
    return words


def reads_as_it_is(name: str, document: Mapping[str, Any]) -> bool:
    """Return whether transformers ignores a class for a ``tokenizer.json`` that splits bytes."""
    if name != "LlamaTokenizer":
        return False
    return "ByteLevel" in _types_in(document.get("pre_tokenizer"))


def _other_token(name: str, role: str, token: str) -> MetadataError:
    return _mismatch(name, f"has another {role}_token, {token!r:.40}")


def _types_in(part: object) -> set[str]:
    """Return the types of a part of ``tokenizer.json`` and of those inside it."""
    if not isinstance(part, Mapping):
        return set()
    types = {str(part.get("type"))}
    for key in ("normalizers", "pretokenizers"):
        inner = part.get(key)
        for item in inner if isinstance(inner, list) else ():
            types |= _types_in(item)
    return types


def _kind_of(model: Mapping[str, Any]) -> str:
    """Return the algorithm; older files don't name it."""
    kind = model.get("type")
    if isinstance(kind, str):
        return kind
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "BPE" if "merges" in model else "WordPiece"


def _mismatch(name: str, difference: str) -> MetadataError:
    return MetadataError(
        f"tokenizer_config.json beside the model has tokenizer_class = {name!r}, which "
        f"doesn't fit tokenizer.json: it {difference}; {_WAY_OUT}"
    )
