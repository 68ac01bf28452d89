"""Read a sentence-transformers model's prompts and similarity.

They are in ``config_sentence_transformers.json``.
"""

from __future__ import annotations

from typing import NamedTuple

from pocketserve.tasks.foreign.activations import SENTENCE_CONFIG
from pocketserve.tasks.model_facts import MetadataError, ModelFacts

MAX_PROMPT_CHARS = 10_000
_QUERY_NAMES = ("query",)
_DOCUMENT_NAMES = ("document", "passage", "corpus")
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


class SentencePrompts(NamedTuple):
    """Prompts of inputs, and the comparison of vectors."""

    default: str = ""
    query: str = ""
    document: str = ""
    similarity: str = "cosine"


def sentence_prompts(facts: ModelFacts) -> SentencePrompts:
    """Read the prompts of ``encode``, ``encode_query`` and ``encode_document``.

    Raises:
        MetadataError: a prompt or the similarity can't be used.
    """
    config = facts.json_beside(SENTENCE_CONFIG)
    prompts = _read_prompts(config.get("prompts"))
    default = ""
    name = config.get("default_prompt_name")
    if name is not None:
        if name not in prompts:
            raise MetadataError(
                f"{SENTENCE_CONFIG}: default_prompt_name {str(name)!r:.60} is none of its prompts"
            )
        default = prompts[name]
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise MetadataError(
            f"{SENTENCE_CONFIG}: similarity_fn_name = {str(similarity)!r:.60} is not supported"
        )
    query = _first(prompts, _QUERY_NAMES, default)
    document = _first(prompts, _DOCUMENT_NAMES, default)
    return SentencePrompts(default, query, document, similarity)


def _read_prompts(listed: object) -> dict[str, str]:
    prompts: dict[str, str] = {}
    if not isinstance(listed, dict):
        return prompts
    for name, text in listed.items():
        if not isinstance(text, str) or len(text) > MAX_PROMPT_CHARS:
            raise MetadataError(
                f"{SENTENCE_CONFIG}: prompt {name!r:.60} is not a text, or too long"
            )
        prompts[name] = text
    return prompts


def _first(prompts: dict[str, str], names: tuple[str, ...], default: str) -> str:
    for name in names:
        if name in prompts:
            return prompts[name]
    return default
