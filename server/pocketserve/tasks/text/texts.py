"""What a request's text is, and how token numbers become a model's input arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import Hints, invalid_input
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.text.charsmap import LONE_SURROGATES
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.tokens import Special, Tokenizer
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import DATATYPES, ApiError, strict_json

MAX_TEXTS = 256
DEFAULT_LENGTH = 512
CHARSETS = frozenset(("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "windows-1252", "utf-16"))
_CHAR_IN_JSON = 12
"""Bytes that one character may take: two escapes such as ``\\ud83d``."""

_AROUND_TEXT = 256
"""Bytes for a text's quotes, comma and indentation, generously."""

_TELLING = {
    "types": ("type_id", "token_type", "segment", "type_ids"),
    "mask": ("mask",),
    "positions": ("position",),
    "ids": ("ids", "word", "token"),
}


def read_text(body: memoryview, hints: Hints, limit: int) -> str:
    """The body as text.

    Args:
        limit: characters above which it is refused.

    Raises:
        ApiError: INVALID_INPUT.
    """
    charset = _charset(hints.content_type)
    if len(body) > 4 * limit + 4:
        raise invalid_input(f"the text has more than {limit} characters (text.max_chars in model.toml)")
    try:
        text = bytes(body).decode("utf-8-sig" if charset in ("utf-8", "utf8") else charset)
    except UnicodeDecodeError as error:
        raise invalid_input(
            f"the text is not {charset.upper()} (byte {error.start}); send UTF-8, or name its charset in Content-Type"
        ) from None
    return checked_text(text, limit)


def read_texts(body: memoryview, hints: Hints, limit: int) -> tuple[list[str], bool]:
    """One text, or the texts of a JSON list; and whether there were several to begin with.

    JSON is a text in quotes, a list of texts or an object with ``text`` or ``texts``; other JSON is refused. A body
    that is said to be text is never taken for JSON.

    Raises:
        ApiError: INVALID_INPUT.
    """
    found = _json_texts(body, hints, limit)
    if found is None:
        return [read_text(body, hints, limit)], False
    texts, many = found
    if not texts:
        raise invalid_input("the list of texts is empty")
    if len(texts) > MAX_TEXTS:
        raise invalid_input(f"the list has {len(texts)} texts, the limit is {MAX_TEXTS}")
    return [checked_text(text, limit) for text in texts], many


def read_object(body: memoryview, needed: Sequence[str], limit: int) -> dict[str, str]:
    """Texts by name out of a JSON object.

    Raises:
        ApiError: INVALID_INPUT, MALFORMED_JSON.
    """
    shown = "{" + ", ".join(f'"{name}": "..."' for name in needed) + "}"
    if bytes(body[:256]).lstrip()[:1] != b"{":
        raise invalid_input(f"this model takes a JSON object: {shown}")
    content = strict_json.loads_object(body)
    unknown = [name for name in content if name not in needed]
    if unknown:
        raise invalid_input(f"unknown key {unknown[0]!r:.80}; this model takes {shown}")
    for name in needed:
        if not isinstance(content.get(name), str):
            raise invalid_input(f"the text {name!r} is missing; this model takes {shown}")
        content[name] = checked_text(content[name], limit)
    return content


def checked_text(text: str, limit: int) -> str:
    """A text with something in it, within the limit. Halves of characters, which JSON can spell, become U+FFFD.

    Raises:
        ApiError: INVALID_INPUT.
    """
    if len(text) > limit:
        raise invalid_input(f"the text has {len(text)} characters, the limit is {limit} (text.max_chars in model.toml)")
    if not text.strip():
        raise invalid_input("the text is empty")
    return text if text.isascii() else LONE_SURROGATES.sub("\ufffd", text)


class TokenInputs:
    """A model's inputs of token numbers.

    Args:
        specs: by role: ``ids``, and where there are such ``mask``, ``types``, ``positions``.
        special: the tokenizer's.
        length: tokens at most.
        fixed: the model always wants that many: the rest is padded.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], special: Special, length: int, *, fixed: bool) -> None:
        self.special = special
        self.length = length
        self._specs = specs
        self._fixed = fixed

    def first(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """As many of a text's tokens as the model takes."""
        room = self.length - len(self.special.first) - len(self.special.last)
        return [token.number for token in islice(tokenizer.tokens(text), max(0, room))]

    def arrays(self, numbers: Sequence[int], second: Sequence[int] | None = None) -> dict[str, Array]:
        """The input arrays of one text or one pair, each of shape [1, tokens]."""
        special = self.special
        ids = [*special.first, *numbers]
        if second is None:
            ids += special.last
            types = [0] * len(ids)
        else:
            ids += special.middle
            types = [0] * len(ids) + [1] * (len(second) + len(special.last))
            ids += [*second, *special.last]
        filling = self.length - len(ids) if self._fixed else 0
        rows = {
            "ids": ids + [special.pad] * filling,
            "mask": [1] * len(ids) + [0] * filling,
            "types": types + [0] * filling,
            "positions": list(range(len(ids) + filling)),
        }
        return {spec.name: _row(rows[role], spec) for role, spec in self._specs.items()}

    def mask(self, arrays: Mapping[str, Array]) -> int:
        """Return how many tokens of a run are no padding; they stand in front."""
        ids = arrays[self._specs["ids"].name].reshape(-1)
        if "mask" in self._specs:
            return int(arrays[self._specs["mask"].name].sum())
        return int(np.count_nonzero(ids != self.special.pad)) or len(ids)


def token_inputs(facts: ModelFacts, options: TextOptions, special: Special, task: str) -> TokenInputs:
    """Find out which input takes what.

    Raises:
        ModelLoadError: an input has no known role.
    """
    specs = _roles(facts, options, task)
    size = specs["ids"].shape[-1] if specs["ids"].shape and not specs["ids"].open else -1
    fixed = size > 0
    longest = options.max_length or (size if fixed else _said_length(facts))
    return TokenInputs(specs, special, min(longest, size) if fixed and not options.max_length else longest, fixed=fixed)


def is_text_input(spec: TensorSpec) -> bool:
    """Return whether an input takes the text itself."""
    return spec.datatype == "BYTES"


def _row(numbers: Sequence[int], spec: TensorSpec) -> Array:
    kind = np.int64 if spec.open or spec.datatype == "BYTES" else np.dtype(DATATYPES[spec.datatype].typestr)
    row = np.asarray(numbers, dtype=kind)
    return row if len(spec.shape) == 1 and not spec.open else row[np.newaxis]


def _roles(facts: ModelFacts, options: TextOptions, task: str) -> dict[str, TensorSpec]:
    named = {"ids": options.ids, "mask": options.mask, "types": options.types}
    by_name = {name: spec for spec in facts.inputs for name in (*spec.aliases, spec.name)}
    roles = {}
    for role, name in named.items():
        if name and name not in by_name:
            raise ModelLoadError(f"model.toml: text.{role} is {name!r}; the model has {', '.join(by_name)}")
        if name:
            roles[role] = by_name[name]
    left = [(i, spec) for i, spec in enumerate(facts.inputs) if spec not in roles.values()]
    for role, tellings in _TELLING.items():
        for index, spec in list(left):
            if role not in roles and any(word in _called(facts, index) for word in tellings):
                roles[role] = spec
                left.remove((index, spec))
    if "ids" not in roles and len(left) == 1:
        roles["ids"] = left.pop()[1]
    if left or "ids" not in roles:
        raise ModelLoadError(
            f"model.toml: task {task}: say with text.ids, text.mask, text.types what {', '.join(by_name)} take"
        )
    return roles


def _called(facts: ModelFacts, index: int) -> str:
    """An input's name in the metadata, which says most; else its own and its signature's."""
    metadata = facts.metadata
    described = metadata.inputs[index].name if metadata is not None and index < len(metadata.inputs) else ""
    spec = facts.inputs[index]
    return " ".join((described,) if described else (spec.name, *spec.aliases)).casefold()


def _said_length(facts: ModelFacts) -> int:
    candidates = (
        facts.json_beside("tokenizer_config.json").get("model_max_length"),
        facts.json_beside("config.json").get("max_position_embeddings"),
    )
    said = [size for size in candidates if type(size) is int and 2 <= size <= 1 << 16]
    return min(said, default=DEFAULT_LENGTH)


def _charset(content_type: str) -> str:
    for part in content_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().casefold() == "charset":
            charset = value.strip().strip('"').casefold()
            if charset not in CHARSETS:
                raise invalid_input(f"the charset {charset[:40]!r} is not known here; send UTF-8")
            return charset
    return "utf-8"


def _worth_parsing(body: memoryview, limit: int) -> bool:
    """Return whether this can be as many texts as are taken; parsing more would cost many times its size in memory."""
    maximum = MAX_TEXTS * (limit * _CHAR_IN_JSON + _AROUND_TEXT)
    return len(body) <= maximum and not strict_json.excess_of(bytes(body))


def _json_texts(body: memoryview, hints: Hints, limit: int) -> tuple[list[str], bool] | None:
    kind = hints.content_type.partition(";")[0].strip().casefold()
    said = kind == "application/json"
    if kind.startswith("text/") or (not said and bytes(body[:64]).lstrip()[:1] not in (b"[", b"{", b'"')):
        return None
    if not said and not _worth_parsing(body, limit):
        return None
    try:
        content: Any = strict_json.loads(body) if said else json.loads(bytes(body))
    except (ValueError, RecursionError):
        return None  # nobody said that it is JSON: it is a text that starts with a bracket
    except ApiError:
        raise
    found = content.get("texts", content.get("text")) if isinstance(content, dict) and len(content) == 1 else content
    if isinstance(found, str):
        return [found], False
    if isinstance(found, list) and all(isinstance(text, str) for text in found):
        return found, True
    # Numbers, or texts by other names, are not to be read letter by letter.
    if said or isinstance(content, list | dict):
        way_out = "" if said else "; with Content-Type text/plain it is a text"
        raise invalid_input(f'JSON for this model is a text, a list of texts or {{"text": "..."}}{way_out}')
    return None
