"""Start a server with tiny language models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gguf_files
from chats import CALL, CALLER, SPELLER, SPELLING
from conftest import Server, start_server

MODEL = "tiny"
LONG = "long"
"""A model whose answers may take minutes."""
LONG_TOKENS = 60_000


@pytest.fixture(scope="session")
def llm_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder of models for chats, completions and embeddings."""
    folder = tmp_path_factory.mktemp("models")
    gguf_files.write_tiny(folder / f"{MODEL}.gguf")
    gguf_files.write_tiny(folder / "plain.gguf", tokenizer__chat_template=None)
    gguf_files.write_tiny(folder / "embedder.gguf", llama__pooling_type=1)
    gguf_files.write_script(
        folder / f"{CALLER}.gguf",
        CALL,
        tokenizer__chat_template=gguf_files.TOOLS_TEMPLATE,
        llama__context_length=2048,
    )
    gguf_files.write_script(folder / f"{SPELLER}.gguf", SPELLING)
    (folder / LONG).mkdir()
    gguf_files.write_tiny(folder / LONG / "m.gguf", llama__context_length=65_536)
    (folder / LONG / "model.toml").write_text("[generation]\ncontext = 65536\n")
    return folder


@pytest.fixture(scope="session")
def llm_server(
    llm_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Start a server on these models."""
    running = start_server(tmp_path_factory.mktemp("llm"), llm_models)
    yield running
    assert running.stop() == 0
