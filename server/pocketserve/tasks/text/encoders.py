"""Encoders: a text becomes a model's input arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import TensorMetadata
from pocketserve.tasks.base import Arrays, invalid_input
from pocketserve.tasks.model_facts import CONFIG, ModelFacts, named_tensor
from pocketserve.tasks.text.hugging_face.lengths import (
    DEFAULT_LENGTH,
    MAX_LENGTH,
    SENTENCE_BERT,
    token_limit,
    usable_positions,
)
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.tokenizers import tokenizer_of
from pocketserve.tasks.text.tokens import Tokenizer
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES

_ROLE_WORDS = {
    "types": ("type_id", "token_type", "segment", "type_ids"),
    "mask": ("mask",),
    "positions": ("position",),
    "ids": ("ids", "word", "token"),
}


class StringEncoder(NamedTuple):
    """Gives a text to a model that tokenizes it itself."""

    spec: TensorSpec

    def encode(self, text: str, pair: str | None = None) -> dict[str, Array]:
        if pair is not None:
            raise invalid_input(
                "this model takes one text, not a pair: it tokenizes its input itself"
            )
        array = np.empty([1] * len(self.spec.shape), dtype=object)
        array[...] = text.encode()
        return {self.spec.name: array}


class TokenEncoder(NamedTuple):
    """Gives the numbers of a text's tokens to a model."""

    tokenizer: Tokenizer
    specs: Mapping[
        str, TensorSpec
    ]  # by role: ``ids``, and where there are such ``mask``, ``types``, ``positions``
    length: int  # tokens at most
    padded: int = 0  # tokens that a fixed-size input takes; 0 if it takes any number
    lower_case: bool = False  # the whole text, before it is tokenized

    def encode(self, text: str, pair: str | None = None) -> dict[str, Array]:
        """Return the input arrays of as much of a text or a pair as the model takes, each of shape [1, tokens]."""
        special = self.tokenizer.special
        around = len(special.first) + len(special.last)
        if pair is None:
            return self.arrays(self._cut(text, max(0, self.length - around)))
        room = max(0, self.length - around - len(special.middle))
        first, second = self._all_numbers(text), self._all_numbers(pair)
        left, right = longest_first(len(first), len(second), room)
        if special.cut_left:
            return self.arrays(
                first[len(first) - left :], second[len(second) - right :]
            )
        return self.arrays(first[:left], second[:right])

    def _cut(self, text: str, room: int) -> list[int]:
        tokens = self.tokenizer.tokens(self._case(text))
        if self.tokenizer.special.cut_left:
            return [*deque((token.number for token in tokens), maxlen=room)]
        return [token.number for token in islice(tokens, room)]

    def _all_numbers(self, text: str) -> list[int]:
        return [token.number for token in self.tokenizer.tokens(self._case(text))]

    def _case(self, text: str) -> str:
        return text.lower() if self.lower_case else text

    def arrays(
        self, numbers: Sequence[int], second: Sequence[int] | None = None
    ) -> dict[str, Array]:
        """Return the input arrays of the tokens of one text or of a pair."""
        special = self.tokenizer.special
        if second is None:
            parts = [*_each(special.first), numbers, *_each(special.last)]
            part_types = special.types_of_single()
        elif special.pair_fault:
            raise invalid_input(
                f"this model takes one text, not a pair: {special.pair_fault} is not supported"
            )
        else:
            parts = [
                *_each(special.first),
                numbers,
                *_each(special.middle),
                second,
                *_each(special.last),
            ]
            part_types = special.types_of_pair()
        ids: list[int] = []
        types: list[int] = []
        for part, part_type in zip(parts, part_types, strict=True):
            ids.extend(part)
            types.extend([part_type] * len(part))
        filling = max(0, self.padded - len(ids))
        rows = {
            "ids": self._filled(ids, special.pad, filling),
            "mask": self._filled([1] * len(ids), 0, filling),
            "types": self._filled(types, special.pad_type, filling),
            "positions": list(range(len(ids) + filling)),
        }
        arrays = {}
        for role, spec in self.specs.items():
            typed = not spec.open and spec.datatype != "BYTES"
            row = np.asarray(
                rows[role], DATATYPES[spec.datatype].typestr if typed else np.int64
            )
            arrays[spec.name] = (
                row if len(spec.shape) == 1 and not spec.open else row[np.newaxis]
            )
        return arrays

    def _filled(self, row: list[int], value: int, count: int) -> list[int]:
        padding = [value] * count
        return padding + row if self.tokenizer.special.pad_left else row + padding

    def filling(self, count: int) -> int:
        """Return the padding in front of so many tokens, special ones included."""
        return max(0, self.padded - count) if self.tokenizer.special.pad_left else 0

    def is_text(self, arrays: Arrays) -> Array:
        """Return which tokens of a run are no padding, as booleans [tokens]."""
        ids = arrays[self.specs["ids"].name].reshape(-1)
        if "mask" in self.specs:
            mask: Array = arrays[self.specs["mask"].name].reshape(-1) != 0
            return mask
        is_text: Array = ids != self.tokenizer.special.pad
        return is_text if self.padded and is_text.any() else np.ones(len(ids), bool)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of a pair are kept: the longer text loses tokens until both fit.

    The rule is that of the ``tokenizers`` library (``truncation.rs``): where both are too long, each keeps half, and
    the longer one the odd token.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if shorter <= room // 2:
        return (first, room - first) if first == shorter else (room - second, second)
    small = room // 2
    return (small, room - small) if first <= second else (room - small, small)


def _each(numbers: Sequence[int]) -> list[tuple[int]]:
    return [(number,) for number in numbers]


def encoder_of(
    facts: ModelFacts, options: TextOptions, task: str
) -> StringEncoder | TokenEncoder:
    """Set up the encoder of a model with any input for text."""
    if len(facts.inputs) == 1 and facts.inputs[0].datatype == "BYTES":
        return StringEncoder(facts.inputs[0])
    return token_encoder(facts, options, task)


def token_encoder(facts: ModelFacts, options: TextOptions, task: str) -> TokenEncoder:
    """As :func:`encoder_of`, for a model that takes tokens."""
    tokenizer = tokenizer_of(facts, options)
    specs = _roles(facts, options, task)
    ids = specs["ids"]
    size = ids.shape[-1] if ids.shape and not ids.open else -1
    padded = max(0, size)
    lower = facts.json_beside(SENTENCE_BERT).get("do_lower_case") is True
    return TokenEncoder(
        tokenizer, specs, _length(facts, options, padded), padded, lower_case=lower
    )


def _length(facts: ModelFacts, options: TextOptions, padded: int) -> int:
    """Return the number of tokens at which texts are cut: a fixed-size input may take more."""
    limit = options.max_length
    if limit is None:
        listed = facts.json_beside(SENTENCE_BERT).get("max_seq_length")
        if type(listed) is int and 2 <= listed <= MAX_LENGTH:
            limit = min(listed, usable_positions(facts.json_beside(CONFIG)) or listed)
        else:
            limit = token_limit(facts, padded or DEFAULT_LENGTH)
    return min(limit, padded) if padded else limit


def full_name(spec: TensorSpec, metadata: TensorMetadata) -> str:
    """Return a tensor's name in the metadata, which says most; else its own and its signature's."""
    return (metadata.name or " ".join((spec.name, *spec.aliases))).casefold()


def _roles(facts: ModelFacts, options: TextOptions, task: str) -> dict[str, TensorSpec]:
    """Return the inputs by role, as the manifest says or else as their names say."""
    names = (("ids", options.ids), ("mask", options.mask), ("types", options.types))
    roles = {
        role: named_tensor(facts.inputs, f"text.{role}", name)
        for role, name in names
        if name
    }
    left = [
        (full_name(spec, facts.input_metadata(number)), spec)
        for number, spec in enumerate(facts.inputs)
    ]
    left = [(name, spec) for name, spec in left if spec not in roles.values()]
    for role, words in _ROLE_WORDS.items():
        match = next(
            (pair for pair in left if any(word in pair[0] for word in words)), None
        )
        if role not in roles and match is not None:
            roles[role] = match[1]
            left.remove(match)
    if "ids" not in roles and len(left) == 1:
        roles["ids"] = left.pop()[1]
    if left or "ids" not in roles:
        inputs = ", ".join(spec.name for spec in facts.inputs)
        raise ModelLoadError(
            f"model.toml: task {task}: say with text.ids, text.mask, text.types what {inputs} take"
        )
    return roles
