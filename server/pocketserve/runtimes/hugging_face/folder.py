"""Read a Hugging Face folder of a language model, without any framework.

A folder has ``config.json``, weights in safetensors (one file, or an index and several)
and a tokenizer. Only the files of :func:`other_files` are copied for a load, so that no
code of the folder is there when the library opens it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pocketserve.formats import DamagedFileError
from pocketserve.formats.gguf import (
    MAX_CONTEXT,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TEMPLATE_BYTES,
    MAX_TEXT,
    MAX_WIDTH,
    GgufHeader,
)
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.hugging_face.weights import (
    DTYPES,
    holds_weights,
    read_bytes,
    read_json,
    read_weights,
    refuse_quantised,
    weight_files,
)

CONFIG: Final = "config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
TEMPLATE: Final = "chat_template.jinja"
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    TEMPLATE,
    "generation_config.json",
)
"""Files beside the weights that the library may read."""

VOCABULARIES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json")
UNQUANTISED: Final = "add the model's GGUF file, or the folder without quantisation"
MAX_VOCABULARY: Final = 1 << 22

_CAUSAL: Final = re.compile(r"\w{1,80}ForCausalLM|GPT2LMHeadModel")


@dataclass(frozen=True)
class FolderHeader(GgufHeader):
    """The facts of a folder, in the form that language models share.

    Attributes:
        dtype: of the weights, as the library names it.
        value_bytes: of each value of the context's cache.
    """

    dtype: str = "float32"
    value_bytes: int = 4

    def can_store(self, kind: str) -> bool:
        """Return whether the cache can have a type: it has that of the weights."""
        return kind == "f16"

    def kv_bytes(self, context: int, kind: str = "f16") -> int:
        """Return the bytes of the cache for so many tokens."""
        return context * self.kv_values * self.value_bytes


def is_language_model(path: Path) -> bool:
    """Return whether this is the ``config.json`` of a language model with weights."""
    if path.name != CONFIG:
        return False
    try:
        config = read_json(path)
        names = os.listdir(path.parent)
    except (DamagedFileError, OSError):
        return False
    if not _is_causal(config):
        return False
    return holds_weights(names)


def folder_task(path: Path) -> str:
    """Return the task of a claimed ``config.json``."""
    return "text-generation"


def other_files(path: Path) -> list[str]:
    """Return the names of the files beside ``config.json`` that a load reads.

    Raises:
        ModelLoadError: it is of a kind that isn't served, or there are no weights that
            may be opened.
    """
    folder = path.parent
    try:
        config = read_json(path)
        refuse_quantised(config, UNQUANTISED)
        _read_numbers(config)
    except DamagedFileError as error:
        raise ModelLoadError(str(error)) from error
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not any(name in VOCABULARIES for name in names):
        raise ModelLoadError(
            f"{folder.name} has no tokenizer ({', '.join(VOCABULARIES)}); download the"
            " whole repository"
        )
    return [*names, *weight_files(folder)]


def read_folder_facts(path: Path) -> Mapping[str, str]:
    """Return the facts for the model's card, by name."""
    try:
        header = read_folder(path)
    except ModelLoadError as error:
        raise DamagedFileError(str(error)) from error
    return {
        "architecture": header.architecture,
        "parameters": str(header.parameters),
        "quantisation": header.quantisation,
        "context": str(header.context),
    }


def read_folder(path: Path) -> FolderHeader:
    """Read and check the facts of a folder.

    Args:
        path: its ``config.json``.

    Raises:
        DamagedFileError: a file is damaged or has impossible numbers.
        ModelLoadError: a file is missing, or of a kind that isn't served.
    """
    config = read_json(path)
    if not _is_causal(config):
        raise DamagedFileError("config.json names no causal language model")
    refuse_quantised(config, UNQUANTISED)
    weights = read_weights(path.parent)
    dtype, value_bytes = DTYPES[weights.kind]
    numbers = _read_numbers(config)
    return FolderHeader(
        architecture=str(config["architectures"][0])[:MAX_TEXT],
        name="",
        licence="",
        context=numbers.context,
        layers=numbers.layers,
        width=numbers.width,
        vocabulary=numbers.vocabulary,
        kv_values=2 * numbers.layers * numbers.kv_heads * numbers.head_size,
        head_sizes=(numbers.head_size, numbers.head_size),
        quantisation=weights.kind,
        template=_read_template(path.parent),
        # The engine refuses them itself, and names the way out.
        knows_tools=True,
        pooling="",
        parameters=weights.parameters,
        file_bytes=weights.parameters * value_bytes,
        dtype=dtype,
        value_bytes=value_bytes,
    )


def read_architecture(path: Path) -> tuple[str, str]:
    """Return a configuration's ``model_type`` and class; "unknown" if it has none."""
    try:
        config = read_json(path)
    except DamagedFileError:
        return "unknown", "unknown"
    kind = config.get("model_type")
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else kind
    return _text_or_unknown(kind), _text_or_unknown(name)


def _text_or_unknown(value: Any) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else "unknown"


def _is_causal(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        return False
    name = names[0]
    return isinstance(name, str) and _CAUSAL.fullmatch(name) is not None


@dataclass(frozen=True)
class _Numbers:
    """Sizes in ``config.json``."""

    context: int
    layers: int
    width: int
    vocabulary: int
    kv_heads: int
    head_size: int


def _read_numbers(config: Mapping[str, Any]) -> _Numbers:
    context = _integer(
        config, ("max_position_embeddings", "n_positions", "max_seq_len"), MAX_CONTEXT
    )
    layers = _integer(config, ("num_hidden_layers", "n_layer", "n_layers"), MAX_LAYERS)
    width = _integer(config, ("hidden_size", "n_embd", "d_model"), MAX_WIDTH)
    heads = _integer(config, ("num_attention_heads", "n_head", "n_heads"), MAX_HEADS)
    kv_names = ("num_key_value_heads", "num_kv_heads")
    kv_heads = _integer(config, kv_names, MAX_HEADS, heads)
    if heads % kv_heads:
        raise DamagedFileError(
            f"config.json has {heads} attention heads, which {kv_heads} KV heads"
            " don't divide"
        )
    head_size = _integer(config, ("head_dim",), MAX_WIDTH, max(1, width // heads))
    vocabulary = _integer(config, ("vocab_size",), MAX_VOCABULARY)
    return _Numbers(context, layers, width, vocabulary, kv_heads, head_size)


def _integer(
    config: Mapping[str, Any],
    names: Sequence[str],
    high: int,
    default: int | None = None,
) -> int:
    """Return the first of some numbers that is present."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or not 1 <= value <= high:
            raise DamagedFileError(
                f"config.json: {name} must be from 1 to {high}; it is {value!r:.40}"
            )
        return value
    if default is None:
        raise DamagedFileError(f"config.json has no {names[0]}")
    return default


def _read_template(folder: Path) -> str:
    """Return the chat template; empty where there is none."""
    path = folder / TEMPLATE
    if path.is_file():
        template = read_bytes(path, MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
        return template
    path = folder / TOKENIZER_CONFIG
    if not path.is_file():
        return ""
    value = read_json(path).get("chat_template")
    if isinstance(value, list):
        value = _default_template(value)
    if not isinstance(value, str):
        return ""
    if len(value.encode("utf-8", "replace")) > MAX_TEMPLATE_BYTES:
        raise DamagedFileError(
            f"its chat template has more than {MAX_TEMPLATE_BYTES} bytes"
        )
    return value


def _default_template(templates: list[Any]) -> Any:
    """Return the template of the name ``default``."""
    for entry in templates:
        if isinstance(entry, dict) and entry.get("name") == "default":
            return entry.get("template")
    return None
