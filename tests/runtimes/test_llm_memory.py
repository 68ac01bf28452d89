"""Choose a context that fits the memory, or explain the sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gguf_files
from pocketserve.formats import DamagedFileError, gguf
from pocketserve.formats.gguf import GgufHeader, read_gguf
from pocketserve.runtimes.llm.memory import (
    ENGINE_BYTES,
    plan_context,
    required_bytes,
    working_bytes,
)
from pocketserve.runtimes.llm.options import GenerationOptions
from pocketserve_wire import ApiError, ErrorCode

AUTOMATIC = GenerationOptions()


@pytest.fixture
def header(tmp_path: Path) -> GgufHeader:
    """Return a model with a long context whose cache can be compressed."""
    file = gguf_files.write_tiny(
        tmp_path / "m.gguf",
        llama__context_length=8192,
        llama__attention__key_length=64,
        llama__attention__value_length=64,
    )
    return read_gguf(file)


def total(header: GgufHeader, context: int, cache: str) -> int:
    model = header.file_bytes + header.kv_bytes(context, cache)
    return model + working_bytes(header, context) + ENGINE_BYTES


@pytest.mark.parametrize(
    ("context", "cache"),
    [
        (4096, "f16"),
        (2048, "f16"),
        (1024, "f16"),
        (1024, "q8_0"),
    ],
)
def test_the_largest_context_that_fits_is_chosen(
    header: GgufHeader, context: int, cache: str
) -> None:
    budget = total(header, context, cache)
    assert plan_context(header, AUTOMATIC, budget) == (context, cache, budget)


def test_without_a_budget_the_full_context_fits(header: GgufHeader) -> None:
    assert plan_context(header, AUTOMATIC, 0).context == 4096


def test_the_context_never_exceeds_the_models_own(tmp_path: Path) -> None:
    header = read_gguf(gguf_files.write_tiny(tmp_path / "m.gguf"))
    assert plan_context(header, AUTOMATIC, 0).context == gguf_files.CONTEXT


def test_a_configured_context_is_kept_or_refused(header: GgufHeader) -> None:
    options = GenerationOptions(context=8192, cache="f16")
    size = total(header, 8192, "f16")
    assert plan_context(header, options, size).context == 8192
    with pytest.raises(ApiError, match="context of 8192 tokens"):
        plan_context(header, options, size - 1)


def test_too_little_memory_names_the_parts_of_the_sum(header: GgufHeader) -> None:
    with pytest.raises(ApiError) as caught:
        plan_context(header, AUTOMATIC, ENGINE_BYTES)
    assert caught.value.code is ErrorCode.MEMORY_BUDGET
    for part in ("file 1,", "context of 1024 tokens", "engine 49", "--memory-budget"):
        assert part in caught.value.message


def test_large_vocabularies_and_batches_count(header: GgufHeader) -> None:
    scores = 4 * 150_000
    large = replace(header, vocabulary=150_000)
    assert working_bytes(large, 1024) > 64 * scores
    embedder = replace(large, pooling="mean")
    assert working_bytes(embedder, 1024) > 2 * 1024 * scores
    encoder = replace(embedder, architecture="nomic-bert")
    assert working_bytes(encoder, 1024) < 1024 * scores


def test_an_embedding_models_context_is_reduced_further(header: GgufHeader) -> None:
    embedder = replace(header, vocabulary=150_000, pooling="mean")
    budget = total(embedder, 512, "f16")
    assert plan_context(embedder, AUTOMATIC, budget).context == 512


def test_a_header_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = gguf_files.write_tiny(tmp_path / "m.gguf")
    first = read_gguf(file)
    monkeypatch.setattr(gguf, "_read", None)
    assert read_gguf(file) is first
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFileError):
        read_gguf(file)


def test_a_damaged_file_is_left_to_the_loader(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert required_bytes(file, {}, 1) == 0


def test_the_budget_counts_the_memory_of_the_manifests_options(tmp_path: Path) -> None:
    file = gguf_files.write_tiny(tmp_path / "m.gguf")
    header = read_gguf(file)
    sections = {GenerationOptions: GenerationOptions(context=256)}
    assert required_bytes(file, sections, 0) == total(header, 256, "f16")
