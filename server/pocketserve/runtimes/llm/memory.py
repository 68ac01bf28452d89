"""Choose a language model's context so that it fits into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pocketserve.formats import DamagedFileError
from pocketserve.formats.gguf import GgufHeader, read_gguf
from pocketserve.runtimes.llm.options import DEFAULT_CONTEXT, GenerationOptions
from pocketserve.runtimes.llm.settings import BATCH
from pocketserve_wire import ApiError, ErrorCode

ENGINE_BYTES: Final = 48 * 2**20
"""Memory of an engine without a model; 33 MiB were measured for xllamacpp."""

TOKEN_BYTES: Final = 200
"""Memory of an engine for each token of the vocabulary; 190 were measured."""

WORKING_WIDTHS: Final = 16
"""Intermediate results of a token, in multiples of the model's width."""

FLOAT_BYTES: Final = 4
SMALL_CONTEXT: Final = 1024
"""The context that is tried before the cache is compressed."""

SMALL_BATCH: Final = 512
"""The context that is tried last for an embedding model, whose batch has its size."""

WITHOUT_SCORES: Final = ("bert", "t5encoder")
"""Parts of the names of architectures that compute no scores of tokens."""


class ContextPlan(NamedTuple):
    """The context of a loaded model, and the memory of all of it."""

    context: int
    cache: str
    memory_bytes: int


def plan_context(
    header: GgufHeader,
    options: GenerationOptions,
    budget: int,
    engine_bytes: int = ENGINE_BYTES,
) -> ContextPlan:
    """Choose the largest context that fits into a budget.

    The owner's own settings are kept as they are. Without a budget (0) everything fits.

    Args:
        engine_bytes: memory of the engine without a model.

    Raises:
        ApiError: MEMORY_BUDGET.
    """
    choices = _choices(header, options)
    for context, cache in choices:
        size = engine_bytes + _model_bytes(header, context, cache)
        if not budget or size <= budget:
            return ContextPlan(context, cache, size)
    smallest, cache = choices[-1]
    raise _no_room(header, ContextPlan(smallest, cache, engine_bytes), budget)


def required_bytes(path: Path, sections: Mapping[type, Any], budget: int) -> int:
    """Return the memory that a model will take; 0 where its header can't be read.

    Raises:
        ApiError: MEMORY_BUDGET, it can't fit into the budget.
    """
    options = sections.get(GenerationOptions) or GenerationOptions()
    try:
        header = read_gguf(path)
    except DamagedFileError:
        return 0  # the load itself says what is wrong
    return plan_context(header, options, budget).memory_bytes


def batch_tokens(header: GgufHeader, context: int) -> int:
    """Return the tokens that an engine reads at once: a text to be embedded, whole."""
    return context if header.pooling else min(BATCH, context)


def working_bytes(header: GgufHeader, context: int) -> int:
    """Return the memory of the vocabulary, and of a batch in progress.

    A batch has a score for each token of the vocabulary. For embeddings, decoders keep
    a copy of them.
    """
    batch = batch_tokens(header, context)
    scores = 2 * header.vocabulary if header.pooling else header.vocabulary
    if any(name in header.architecture for name in WITHOUT_SCORES):
        scores = 0
    values = scores + WORKING_WIDTHS * header.width + context
    return TOKEN_BYTES * header.vocabulary + FLOAT_BYTES * batch * values


def _choices(header: GgufHeader, options: GenerationOptions) -> list[tuple[int, str]]:
    """Return contexts with types of the cache, the best first."""
    full = options.context or min(header.context, DEFAULT_CONTEXT)
    cache = options.cache or "f16"
    choices = [(full, cache)]
    context = full
    if options.context is None and full > SMALL_CONTEXT:
        if full > 2 * SMALL_CONTEXT:
            choices.append((2 * SMALL_CONTEXT, cache))
        context = SMALL_CONTEXT
        choices.append((context, cache))
    if options.context is None and header.pooling and context > SMALL_BATCH:
        context = SMALL_BATCH
        choices.append((context, cache))
    if options.cache is None and header.can_store("q8_0"):
        choices.append((context, "q8_0"))
    return choices


def _model_bytes(header: GgufHeader, context: int, cache: str) -> int:
    model = header.file_bytes + header.kv_bytes(context, cache)
    return model + working_bytes(header, context)


def _no_room(header: GgufHeader, smallest: ContextPlan, budget: int) -> ApiError:
    """Return the error with the sum.

    Args:
        smallest: with the memory of the engine alone.
    """
    context, cache, engine_bytes = smallest
    file = mebibytes(header.file_bytes)
    kv = mebibytes(header.kv_bytes(context, cache))
    engine = mebibytes(engine_bytes + working_bytes(header, context))
    size = engine_bytes + _model_bytes(header, context, cache)
    parts = f"file {file}, context of {context} tokens {kv}, engine {engine}"
    way_out = "take a smaller or more quantised model, or raise --memory-budget"
    return budget_error(size, parts, budget, way_out)


def budget_error(size: int, parts: str, budget: int, way_out: str) -> ApiError:
    """Return the error for a model that can't fit into the memory budget.

    Args:
        size: the bytes that it needs.
        parts: what they are for, in MiB.
        way_out: the end of the sentence.
    """
    text = (
        f"failed to load the model: it needs {mebibytes(size)} MiB ({parts}), but the"
        f" memory budget is {mebibytes(budget)} MiB; {way_out}"
    )
    return ApiError(ErrorCode.MEMORY_BUDGET, text, retry_after_s=1.0)


def mebibytes(size: int) -> int:
    """Return bytes in MiB, rounded up."""
    return -(-size // 2**20)
