"""Turn texts into a model's input arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
    """Pass a text to a model that tokenizes it itself."""

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
    """Pass token numbers to a model.

    Attributes:
        specs: inputs by role: ``ids`` and, if the model has them, ``mask``, ``types`` and
            ``positions``.
        length: the maximum number of tokens.
        padded: tokens of a fixed-size input; 0 if it takes any number.
        lower_case: whether the text is lower-cased before tokenization.
    """

    tokenizer: Tokenizer
    specs: Mapping[str, TensorSpec]
    length: int
    padded: int = 0
    lower_case: bool = False

    def encode(self, text: str, pair: str | None = None) -> dict[str, Array]:
        """Return the arrays of a text or pair, cut to the model's length.

        Each has the shape [1, tokens].
        """
        special = self.tokenizer.special
        around = len(special.first) + len(special.last)
        if pair is None:
            room = max(0, self.length - around)
            return self.arrays(self._cut(text, room))
        room = max(0, self.length - around - len(special.middle))
        first = self._all_numbers(text)
        second = self._all_numbers(pair)
        left, right = longest_first(len(first), len(second), room)
        if special.cut_left:
            first = first[len(first) - left :]
            second = second[len(second) - right :]
            return self.arrays(first, second)
        return self.arrays(first[:left], second[:right])

    def _cut(self, text: str, room: int) -> list[int]:
        tokens = self.tokenizer.tokens(self._case(text))
        if self.tokenizer.special.cut_left:
            return [*deque((token.number for token in tokens), maxlen=room)]
        return [token.number for token in islice(tokens, room)]

    def _all_numbers(self, text: str) -> list[int]:
        return [token.number for token in self.tokenizer.tokens(self._case(text))]

    def _case(self, text: str) -> str:
        if self.lower_case:
            return text.lower()
        return text

    def arrays(
        self, numbers: Sequence[int], second: Sequence[int] | None = None
    ) -> dict[str, Array]:
        """Return the input arrays for a text or pair."""
        special = self.tokenizer.special
        ids: list[int] = []
        types: list[int] = []
        for part, part_type in self._parts(numbers, second):
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
            arrays[spec.name] = _as_input(rows[role], spec)
        return arrays

    def _parts(
        self, numbers: Sequence[int], second: Sequence[int] | None
    ) -> Iterator[tuple[Sequence[int], int]]:
        """Return token numbers and token type of each part, special tokens included."""
        special = self.tokenizer.special
        parts = [*_each(special.first), numbers]
        if second is None:
            part_types = special.types_of_single()
        elif special.pair_fault:
            raise invalid_input(
                f"this model takes one text, not a pair: {special.pair_fault} is not supported"
            )
        else:
            parts += [*_each(special.middle), second]
            part_types = special.types_of_pair()
        parts += _each(special.last)
        return zip(parts, part_types, strict=True)

    def _filled(self, row: list[int], value: int, count: int) -> list[int]:
        padding = [value] * count
        if self.tokenizer.special.pad_left:
            return padding + row
        return row + padding

    def filling(self, count: int) -> int:
        """Return the padding in front of ``count`` tokens, special ones included."""
        if self.tokenizer.special.pad_left:
            return max(0, self.padded - count)
        return 0

    def is_text(self, arrays: Arrays) -> Array:
        """Return booleans [tokens]: False for padding."""
        ids = arrays[self.specs["ids"].name].reshape(-1)
        if "mask" in self.specs:
            mask: Array = arrays[self.specs["mask"].name].reshape(-1) != 0
            return mask
        is_text: Array = ids != self.tokenizer.special.pad
        if self.padded and is_text.any():
            return is_text
        return np.ones(len(ids), bool)


def _as_input(row: list[int], spec: TensorSpec) -> Array:
    """Return an input array.

    The shape of an open input is [1, tokens].
    """
    if spec.open or spec.datatype == "BYTES":
        array = np.asarray(row, np.int64)
    else:
        array = np.asarray(row, DATATYPES[spec.datatype].typestr)
    if len(spec.shape) == 1 and not spec.open:
        return array
    return array[np.newaxis]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the token counts that fit: the longer text is cut first.

    The rule is that of the ``tokenizers`` library (``truncation.rs``): if both are too
    long, each keeps half, and the longer one the odd token.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    half = room // 2
    if shorter <= half:
        if first == shorter:
            return (first, room - first)
        return (room - second, second)
    if first <= second:
        return (half, room - half)
    return (room - half, half)


def _each(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [(number,) for number in numbers]


def encoder_of(
    facts: ModelFacts, options: TextOptions, task: str
) -> StringEncoder | TokenEncoder:
    """Build the encoder of a model's text input."""
    if len(facts.inputs) == 1 and facts.inputs[0].datatype == "BYTES":
        return StringEncoder(facts.inputs[0])
    return token_encoder(facts, options, task)


def token_encoder(facts: ModelFacts, options: TextOptions, task: str) -> TokenEncoder:
    """Build the encoder of a model that takes tokens."""
    tokenizer = tokenizer_of(facts, options)
    specs = _roles(facts, options, task)
    ids = specs["ids"]
    size = -1
    if ids.shape and not ids.open:
        size = ids.shape[-1]
    padded = max(0, size)
    lower = facts.json_beside(SENTENCE_BERT).get("do_lower_case") is True
    return TokenEncoder(
        tokenizer, specs, _length(facts, options, padded), padded, lower_case=lower
    )


def _length(facts: ModelFacts, options: TextOptions, padded: int) -> int:
    """Return the token limit.

    A fixed-size input may be larger.
    """
    limit = options.max_length
    if limit is None:
        limit = _declared_length(facts, padded)
    if padded:
        return min(limit, padded)
    return limit


def _declared_length(facts: ModelFacts, padded: int) -> int:
    listed = facts.json_beside(SENTENCE_BERT).get("max_seq_length")
    if type(listed) is not int or not 2 <= listed <= MAX_LENGTH:
        return token_limit(facts, padded or DEFAULT_LENGTH)
    return min(listed, usable_positions(facts.json_beside(CONFIG)) or listed)


def full_name(spec: TensorSpec, metadata: TensorMetadata) -> str:
    """Return a tensor's name in metadata and signature."""
    return (metadata.name or " ".join((spec.name, *spec.aliases))).casefold()


def _roles(facts: ModelFacts, options: TextOptions, task: str) -> dict[str, TensorSpec]:
    """Assign the inputs to roles by the manifest, else by their names."""
    roles = _declared_roles(facts, options)
    remaining: list[tuple[str, TensorSpec]] = []
    for number, spec in enumerate(facts.inputs):
        if spec not in roles.values():
            name = full_name(spec, facts.input_metadata(number))
            remaining.append((name, spec))
    for role, words in _ROLE_WORDS.items():
        match = _first_match(remaining, words)
        if role not in roles and match is not None:
            roles[role] = match[1]
            remaining.remove(match)
    if "ids" not in roles and len(remaining) == 1:
        roles["ids"] = remaining.pop()[1]
    if remaining or "ids" not in roles:
        raise _unclear_roles(facts, task)
    return roles


def _declared_roles(facts: ModelFacts, options: TextOptions) -> dict[str, TensorSpec]:
    """Return the inputs that the manifest names, by role."""
    declared = {
        "ids": options.ids,
        "mask": options.mask,
        "types": options.types,
    }
    roles = {}
    for role, name in declared.items():
        if name:
            roles[role] = named_tensor(facts.inputs, f"text.{role}", name)
    return roles


def _unclear_roles(facts: ModelFacts, task: str) -> ModelLoadError:
    inputs = ", ".join(spec.name for spec in facts.inputs)
    return ModelLoadError(
        f"model.toml: task {task}: the roles of the inputs {inputs} are unclear; "
        "name them as text.ids, text.mask and text.types"
    )


def _first_match(
    named_specs: Sequence[tuple[str, TensorSpec]], words: Sequence[str]
) -> tuple[str, TensorSpec] | None:
    for name, spec in named_specs:
        if any(word in name for word in words):
            return name, spec
    return None
