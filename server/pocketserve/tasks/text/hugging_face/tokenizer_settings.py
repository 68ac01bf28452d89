"""Read a tokenizer's settings from Hugging Face's files.

They are in ``tokenizer_config.json``, ``special_tokens_map.json`` and
``added_tokens.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pocketserve.tasks.model_facts import CONFIG, MetadataError, ModelFacts
from pocketserve.tasks.text.hugging_face.added_tokens import AddedToken, added_token
from pocketserve.tasks.text.hugging_face.tokenizer_classes import (
    CLASSES,
    FIXED_CASE,
    GENERIC,
    READS_CASE,
    class_in_use,
    registered_class,
    reject_python_class,
)
from pocketserve.tasks.text.tokens import Special

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
MAX_ADDED = 100_000
_GENERIC_CLASSES = (
    "PreTrainedTokenizerFast",
    "PreTrainedTokenizer",
    GENERIC,
)
"""Classes of transformers that take ``tokenizer.json`` as it is, whatever ``do_lower_case`` says."""

_SETS_BOS = ("Llama", "CodeLlama", "Gemma")
"""Classes that rebuild the post-processor by ``add_bos_token`` and ``add_eos_token``, also where these are false."""

_IGNORES_BOS = (
    "Albert",
    "Bert",
    "BigBird",
    "DistilBert",
    "Electra",
    "Funnel",
    "GPT2",
    "MPNet",
    "RoFormer",
    "XLNet",
)
"""Classes with special tokens of their own, whatever ``add_bos_token`` and ``add_eos_token`` say."""

_PADS_LEFT = ("XLNet", "Llama", "CodeLlama", "Gemma", "Cohere")
"""Classes that are padded on the left where no file says anything."""

Number = Callable[[str], int | None]


class TokenizerSettings(NamedTuple):
    """The settings; None leaves one to ``tokenizer.json`` or to the vocabulary.

    Attributes:
        of_bert_class: whether ``lower_case``, ``strip_accents`` and ``cjk`` override ``tokenizer.json``.
        names: special tokens by role, such as ``pad``.
        max_length: ``model_max_length``.
        prefix_space: ``add_prefix_space``.
        is_registered: whether the class is the one of the model's type.
        cleans: ``clean_text``.
    """

    tokenizer_class: str = ""
    lower_case: bool | None = None
    strip_accents: bool | None = None
    cjk: bool | None = None
    add_bos: bool | None = None
    add_eos: bool | None = None
    names: Mapping[str, str] = {}
    added: tuple[AddedToken, ...] = ()
    pad_type: int | None = None
    padding_side: str = ""
    truncation_side: str = ""
    max_length: int | None = None
    prefix_space: bool | None = None
    is_registered: bool = False
    cleans: bool | None = None

    @property
    def of_bert_class(self) -> bool:
        """Return whether the class builds the normalizer itself."""
        name = self.tokenizer_class
        return name in CLASSES or name in READS_CASE or name in FIXED_CASE

    @property
    def case_of_class(self) -> bool | None:
        """Return ``do_lower_case``, its default in the class, or the class's own rule."""
        name = self.tokenizer_class
        if name in FIXED_CASE:
            return FIXED_CASE[name]
        rules = CLASSES.get(name)
        lowers = name in READS_CASE or (rules is not None and rules.lowers)
        if self.lower_case is None and lowers:
            return True
        return self.lower_case

    def complete(
        self,
        special: Special,
        number_of: Number,
        padding: object = None,
        truncation: object = None,
    ) -> Special:
        """Complete special tokens and sides with the settings.

        Args:
            number_of: returns a token's number; None if there is none.
            padding: ``padding`` of ``tokenizer.json``; these settings have priority.
            truncation: ``truncation`` of ``tokenizer.json``, likewise.

        Raises:
            MetadataError: ``padding`` names a token that doesn't exist.
        """
        pads = padding if isinstance(padding, Mapping) else {}
        cuts = truncation if isinstance(truncation, Mapping) else {}
        pad = self._number("pad", number_of)
        rules = CLASSES.get(self.tokenizer_class)
        if pad is None and rules is not None:
            pad = number_of(rules.pad)
        if pad is None and "pad" not in self.names:
            pad = _named_pad(pads, number_of)
        if pad is None:
            pad = pads.get("pad_id")
        pad_type = pads.get("pad_type_id") if self.pad_type is None else self.pad_type
        if rules is not None and not self.tokenizer_class.startswith("XLNet"):
            pad_type = 0  # these classes ignore the files' number
        return self._with_bos_and_eos(special, number_of)._replace(
            pad=_count_or(pad, special.pad),
            pad_type=_count_or(pad_type, special.pad_type),
            pad_left=self._pads_left(pads.get("direction")),
            cut_left=_side(self.truncation_side or cuts.get("direction")) == "left",
        )

    def _pads_left(self, direction: object) -> bool:
        """Return whether texts are padded on the left; ``direction`` is tokenizer.json's."""
        side = _side(self.padding_side or direction)
        if side:
            return side == "left"
        return self.tokenizer_class.startswith(_PADS_LEFT)

    def _number(self, role: str, number_of: Number) -> int | None:
        name = self.names.get(role)
        if name is None:
            return None
        return number_of(name)

    def _with_bos_and_eos(self, special: Special, number_of: Number) -> Special:
        bos = self._number("bos", number_of)
        eos = self._number("eos", number_of)
        first = special.first
        last = special.last
        if self.tokenizer_class in _GENERIC_CLASSES:
            self._reject_other_ends(special, bos, eos)
        rebuilds = self.tokenizer_class.startswith(_SETS_BOS)
        if self.tokenizer_class.startswith(_IGNORES_BOS):
            return special
        if self.add_bos and bos is not None and bos not in first:
            first = (bos, *first)
        elif self.add_bos is False and rebuilds:
            first = _without(first, bos)
        if self.add_eos and eos is not None and eos not in last:
            last = (*last, eos)
        elif self.add_eos is False and rebuilds:
            last = _without(last, eos)
        if (first, last) == (special.first, special.last):
            return special
        if self.tokenizer_class in CLASSES and not rebuilds:
            raise _other_ends()
        return Special(
            first,
            (*last, *first),
            last,
            special.pad,
            special.unknown,
            pad_type=special.pad_type,
            pad_left=special.pad_left,
            cut_left=special.cut_left,
        )

    def _reject_other_ends(
        self, special: Special, bos: int | None, eos: int | None
    ) -> None:
        """Raise if the class would remove special tokens of ``tokenizer.json``."""
        if self.add_bos is None and self.add_eos is None:
            return
        ends = [
            (special.first, self.add_bos, bos),
            (special.last, self.add_eos, eos),
        ]
        for numbers, adds, number in ends:
            if numbers and not (adds and numbers == (number,)):
                raise _other_ends()


def _other_ends() -> MetadataError:
    return MetadataError(
        "tokenizer_config.json beside the model has add_bos_token and add_eos_token, "
        "which don't fit the special tokens of tokenizer.json; remove them"
    )


def _without(numbers: tuple[int, ...], excluded: int | None) -> tuple[int, ...]:
    return tuple(number for number in numbers if number != excluded)


def tokenizer_settings(facts: ModelFacts) -> TokenizerSettings:
    """Read the settings beside a model.

    Raises:
        MetadataError: the tokenizer's class has rules that are in no file.
    """
    config = facts.json_beside(TOKENIZER_CONFIG)
    model_config = facts.json_beside(CONFIG)
    declared = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    model_type = model_config.get("model_type")
    name = class_in_use(str(declared or ""), model_type)
    reject_python_class(name)
    names = _token_names(config, facts.json_beside(SPECIAL_TOKENS))
    length = config.get("model_max_length")
    pad_type = config.get("pad_token_type_id")
    return TokenizerSettings(
        name,
        _flag(config.get("do_lower_case")),
        _flag(config.get("strip_accents")),
        _flag(config.get("tokenize_chinese_chars")),
        _flag(config.get("add_bos_token")),
        _flag(config.get("add_eos_token")),
        names,
        _added(config, facts),
        pad_type if _is_count(pad_type) else None,
        _side(config.get("padding_side")),
        _side(config.get("truncation_side")),
        length if type(length) is int else None,
        _flag(config.get("add_prefix_space")),
        is_registered=name == registered_class(model_type),
        cleans=_flag(config.get("clean_text")),
    )


def _token_names(
    config: Mapping[str, Any], special_tokens: Mapping[str, Any]
) -> dict[str, str]:
    """Return the special tokens by role.

    ``special_tokens_map.json`` counts only without ``added_tokens_decoder``, which newer
    versions write; then it has priority.
    """
    sources = [config, special_tokens]
    if "added_tokens_decoder" not in config:
        sources.reverse()
    names = {}
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        key = f"{role}_token"
        name = _text_of(sources[0].get(key)) or _text_of(sources[1].get(key))
        if name:
            names[role] = name
    return names


def _added(config: Mapping[str, Any], facts: ModelFacts) -> tuple[AddedToken, ...]:
    """Return the tokens of ``added_tokens_decoder`` and ``added_tokens.json``.

    Older versions wrote the second.
    """
    tokens: dict[str, AddedToken] = {}
    listed = config.get("added_tokens_decoder")
    if isinstance(listed, dict) and len(listed) <= MAX_ADDED:
        for number, entry in listed.items():
            token = _decoded_token(number, entry)
            if token is not None:
                tokens[token.content] = token
    older = facts.json_beside(ADDED_TOKENS)
    if len(older) <= MAX_ADDED:
        for content, number in older.items():
            entry = {"id": number, "content": content, "normalized": True}
            token = added_token(entry)
            if token is not None:
                tokens.setdefault(content, token)
    return tuple(tokens.values())


def _decoded_token(number: str, entry: Any) -> AddedToken | None:
    """Return a token of ``added_tokens_decoder``; None if it is invalid."""
    if not isinstance(entry, dict):
        return None
    if not number.isdecimal() or len(number) >= 10:
        return None
    return added_token({**entry, "id": int(number)})


def _named_pad(padding: Mapping[str, Any], number_of: Number) -> int | None:
    """Return the number of ``padding.pad_token``, which comes before ``pad_id``.

    Raises:
        MetadataError: there is no such token. Transformers would add it to the
            vocabulary, so that texts that contain it have other tokens.
    """
    name = padding.get("pad_token")
    if not isinstance(name, str):
        return None
    number = number_of(name)
    if number is None:
        raise MetadataError(
            f"tokenizer.json beside the model has padding.pad_token = {name!r:.40}, "
            "which is not in its vocabulary; correct it, or set pad_token in "
            "tokenizer_config.json"
        )
    return number


def _text_of(token: object) -> str:
    content = token
    if isinstance(token, dict):
        content = token.get("content")
    if isinstance(content, str):
        return content
    return ""


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return None


def _side(value: object) -> str:
    side = ""
    if isinstance(value, str):
        side = str(value).lower()
    if side in ("left", "right"):
        return side
    return ""


def _count_or(value: object, default: int) -> int:
    if type(value) is int and 0 <= value < 1 << 31:
        return value
    return default


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31
