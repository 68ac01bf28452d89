"""The settings of an engine, and their form on a command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
TOKENIZE: Final = "/tokenize"
"""Routes that every engine answers on its socket."""

BATCH: Final = 64
"""Tokens of a prompt between two looks at whether the request was cancelled."""

HTTP_THREADS: Final = 4
"""One answers, the others keep health checks and refusals quick."""


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the process of one model.

    Attributes:
        program: path of llama.cpp's server; empty for the Python package.
        socket: name of the UNIX socket in the process's folder, ends in ``.sock``.
        alias: the model's name in answers; without it, its path would stand there.
        pooling: of an embedding model; empty for one that generates text.
        dtype: of a Hugging Face folder's weights; empty for a GGUF file.
        load_bytes: memory that only the load takes.
    """

    program: str
    model: str
    socket: str
    alias: str
    context: int
    cache: str
    threads: int
    batch: int = BATCH
    http_threads: int = HTTP_THREADS
    pooling: str = ""
    dtype: str = ""
    load_bytes: int = 0
