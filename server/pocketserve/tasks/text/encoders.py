"""Encoders: a text becomes a model's input arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import TensorMetadata
from pocketserve.tasks.base import Arrays
from pocketserve.tasks.model_facts import CONFIG, ModelFacts, named_tensor
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.tokenizers import tokenizer_of
from pocketserve.tasks.text.tokens import Tokenizer
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES

DEFAULT_LENGTH = 512
_ROLE_WORDS = {
    "types": ("type_id", "token_type", "segment", "type_ids"),
    "mask": ("mask",),
    "positions": ("position",),
    "ids": ("ids", "word", "token"),
}


class StringEncoder(NamedTuple):
    """Gives a text to a model that tokenizes it itself."""

    spec: TensorSpec

    def encode(self, text: str) -> dict[str, Array]:
        array = np.empty([1] * len(self.spec.shape), dtype=object)
        array[...] = text.encode()
        return {self.spec.name: array}

    def token_count(self, arrays: Arrays) -> int:
        return 0


class TokenEncoder(NamedTuple):
    """Gives the numbers of a text's tokens to a model."""

    tokenizer: Tokenizer
    specs: Mapping[str, TensorSpec]  # by role: ``ids``, and where there are such ``mask``, ``types``, ``positions``
    length: int  # tokens at most
    fixed: bool  # the model always takes that many: the rest is padded

    def encode(self, text: str) -> dict[str, Array]:
        """Return the input arrays of as much of a text as the model takes, each of shape [1, tokens]."""
        special = self.tokenizer.special
        room = self.length - len(special.first) - len(special.last)
        return self.arrays([token.number for token in islice(self.tokenizer.tokens(text), max(0, room))])

    def arrays(self, numbers: Sequence[int], second: Sequence[int] | None = None) -> dict[str, Array]:
        """Return the input arrays of the tokens of one text or of a pair."""
        special = self.tokenizer.special
        ids = [*special.first, *numbers, *(special.last if second is None else special.middle)]
        types = [0] * len(ids)
        if second is not None:
            ids += [*second, *special.last]
            types += [1] * (len(ids) - len(types))
        filling = self.length - len(ids) if self.fixed else 0
        rows = {
            "ids": ids + [special.pad] * filling,
            "mask": [1] * len(ids) + [0] * filling,
            "types": types + [0] * filling,
            "positions": list(range(len(ids) + filling)),
        }
        arrays = {}
        for role, spec in self.specs.items():
            typed = not spec.open and spec.datatype != "BYTES"
            row = np.asarray(rows[role], DATATYPES[spec.datatype].typestr if typed else np.int64)
            arrays[spec.name] = row if len(spec.shape) == 1 and not spec.open else row[np.newaxis]
        return arrays

    def token_count(self, arrays: Arrays) -> int:
        """Return how many tokens of a run are no padding; they stand in front."""
        if "mask" in self.specs:
            return int(arrays[self.specs["mask"].name].sum())
        ids = arrays[self.specs["ids"].name].reshape(-1)
        return int(np.count_nonzero(ids != self.tokenizer.special.pad)) or len(ids)


def encoder_of(facts: ModelFacts, options: TextOptions, task: str) -> StringEncoder | TokenEncoder:
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
    length = options.max_length or size
    if length <= 0:
        lengths = (
            facts.json_beside("tokenizer_config.json").get("model_max_length"),
            facts.json_beside(CONFIG).get("max_position_embeddings"),
        )
        length = min((n for n in lengths if type(n) is int and 2 <= n <= 1 << 16), default=DEFAULT_LENGTH)
    return TokenEncoder(tokenizer, specs, length, fixed=size > 0)


def full_name(spec: TensorSpec, metadata: TensorMetadata) -> str:
    """Return a tensor's name in the metadata, which says most; else its own and its signature's."""
    return (metadata.name or " ".join((spec.name, *spec.aliases))).casefold()


def _roles(facts: ModelFacts, options: TextOptions, task: str) -> dict[str, TensorSpec]:
    """Return the inputs by role, as the manifest says or else as their names say."""
    names = (("ids", options.ids), ("mask", options.mask), ("types", options.types))
    roles = {role: named_tensor(facts.inputs, f"text.{role}", name) for role, name in names if name}
    left = [(full_name(spec, facts.input_metadata(number)), spec) for number, spec in enumerate(facts.inputs)]
    left = [(name, spec) for name, spec in left if spec not in roles.values()]
    for role, words in _ROLE_WORDS.items():
        match = next((pair for pair in left if any(word in pair[0] for word in words)), None)
        if role not in roles and match is not None:
            roles[role] = match[1]
            left.remove(match)
    if "ids" not in roles and len(left) == 1:
        roles["ids"] = left.pop()[1]
    if left or "ids" not in roles:
        inputs = ", ".join(spec.name for spec in facts.inputs)
        raise ModelLoadError(f"model.toml: task {task}: say with text.ids, text.mask, text.types what {inputs} take")
    return roles
