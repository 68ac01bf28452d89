"""The manifest's options for language models."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pocketserve.formats.gguf import KV_TYPES, MAX_CONTEXT
from pocketserve.repository.toml_table import Section, TomlTable

DEFAULT_CONTEXT = 4096
DEFAULT_MAX_TOKENS = 512
DEFAULT_TIMEOUT_S = 300.0


class GenerationOptions(NamedTuple):
    """The manifest's ``[generation]``; see ``docs/text-generation.md``.

    Attributes:
        context: tokens of prompt and answer together; None takes 4096, or fewer where
            the model or the memory budget has fewer.
        cache: type of the context's cache; None takes f16, or q8_0 to save memory.
        max_tokens: tokens of an answer where the request names no number.
        timeout: seconds that one answer may take.
    """

    context: Annotated[int | None, TomlTable.integer, 64, MAX_CONTEXT] = None
    cache: Annotated[str | None, TomlTable.choice, tuple(KV_TYPES)] = None
    max_tokens: Annotated[int, TomlTable.integer, 1, MAX_CONTEXT] = DEFAULT_MAX_TOKENS
    timeout: Annotated[float, TomlTable.number, 1, 86_400] = DEFAULT_TIMEOUT_S


GENERATION = Section("generation", GenerationOptions)
