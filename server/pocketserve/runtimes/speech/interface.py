"""The interface of speech models, which all their runtimes implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pocketserve.tensors import Array


class TokenStep(NamedTuple):
    """Logits of the next token, and the cache after the tokens so far."""

    logits: Array
    cache: Any


class SpeechModel(Protocol):
    """The neural part of a model. Caches are immutable."""

    def encode(self, features: Array) -> Any:
        """Return the cache before the first token."""
        ...

    def step(self, tokens: Sequence[int], cache: Any) -> TokenStep:
        """Read tokens, and return the logits after the last one."""
        ...
