"""Prepare a Hugging Face folder for llama.cpp's conversion, without any code.

The conversion allows the tokenizer's library to run code, which ``auto_map`` can name by
a path outside the folder. So the settings are written anew without it, and the library
can't load code in the tool's process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.hugging_face.folder import (
    CONFIG,
    TOKENIZER_CONFIG,
    other_files,
)
from pocketserve.runtimes.hugging_face.weights import read_json
from pocketserve_lab.convert.converter import ConversionError

FAMILIES: Final = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Phi", "SmolLM3")
"""Starts of the names of accepted architectures."""

TOKENIZERS: Final = (
    "PreTrainedTokenizer",
    "TokenizersBackend",
    "CodeGenTokenizer",
    "CodeLlamaTokenizer",
    "GemmaTokenizer",
    "GPT2Tokenizer",
    "LlamaTokenizer",
    "Qwen2Tokenizer",
)
"""Accepted classes of tokenizers; each may end with ``Fast``."""

CODE: Final = "auto_map"
_INNER: Final = (
    "text_config",
    "llm_config",
    "lm_config",
    "thinker_config",
    "language_config",
    "lfm",
)
"""Members of ``config.json`` whose architecture the conversion prefers."""

_LOADERS: Final = (
    "get_class_from_dynamic_module",
    "get_class_in_module",
    "get_cached_module_file",
)
_HUB_VARIABLES: Final = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")


def copy_without_code(source: Path, target: Path) -> None:
    """Link the files that a load reads, and rewrite the settings.

    Raises:
        ConversionError: a file is damaged, or of a kind that isn't served.
    """
    target.mkdir()
    try:
        names = other_files(source / CONFIG)
        _rewrite(source / CONFIG, target)
        for name in names:
            if name == TOKENIZER_CONFIG:
                _rewrite(source / name, target)
            else:
                (target / name).symlink_to((source / name).absolute())
    except (ModelLoadError, DamagedFileError) as error:
        raise ConversionError(str(error)) from None


def _rewrite(file: Path, target: Path) -> None:
    """Write settings without the names of code."""
    text = json.dumps(read_json(file))
    settings = json.loads(text, object_hook=_without_code)
    (target / file.name).write_text(json.dumps(settings), encoding="utf-8")


def _without_code(document: dict[str, Any]) -> dict[str, Any]:
    document.pop(CODE, None)
    return document


def fault_of(folder: Path) -> str:
    """Return the reason to refuse a copied folder; empty if there is none."""
    config = read_json(folder / CONFIG)
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not is_accepted(names[0]):
        return f"it is for {', '.join(FAMILIES)}; add the model's own GGUF file"
    for name in _INNER:
        if name in config:
            return (
                f"its config.json describes several models ({name}); add the model's"
                " own GGUF file"
            )
    settings = {}
    if (folder / TOKENIZER_CONFIG).exists():
        settings = read_json(folder / TOKENIZER_CONFIG)
    for document in (config, settings):
        fault = _tokenizer_fault(document)
        if fault:
            return fault
    return ""


def is_accepted(architecture: object) -> bool:
    """Return whether an architecture is of an accepted family."""
    return isinstance(architecture, str) and architecture.startswith(FAMILIES)


def _tokenizer_fault(settings: Mapping[str, Any]) -> str:
    name = settings.get("tokenizer_class")
    if name is None:
        return ""
    if isinstance(name, str) and name.removesuffix("Fast") in TOKENIZERS:
        return ""
    return (
        f"its tokenizer's class {name!r:.60} is none of {', '.join(TOKENIZERS)}; add"
        " the model's own GGUF file"
    )


def forbid_code(hub: Path) -> None:
    """Stop the tokenizer's library from loading code or asking a hub.

    Args:
        hub: a folder for its cache, which is empty.
    """
    for name in list(os.environ):
        if name.startswith(_HUB_VARIABLES):
            del os.environ[name]
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HOME"] = str(hub)
    from transformers import dynamic_module_utils

    # All three: modules that were imported before keep the first function, which calls
    # the others.
    for name in _LOADERS:
        setattr(dynamic_module_utils, name, _refuse_code)


def _refuse_code(*arguments: object, **options: object) -> NoReturn:
    raise ImportError("the model's folder names code, which never runs")
