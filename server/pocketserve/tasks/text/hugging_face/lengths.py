"""Derive a model's token limit from its configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.tasks.model_facts import CONFIG, ModelFacts
from pocketserve.tasks.text.hugging_face.tokenizer_settings import tokenizer_settings

SENTENCE_BERT = "sentence_bert_config.json"
DEFAULT_LENGTH = 512
MAX_LENGTH = 1 << 16
_DEFAULT_PAD = 1  # of all models in ``_BEHIND_PADDING``

_BEHIND_PADDING = frozenset(
    (
        "bridgetower",
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    )
)
"""Models whose positions begin after ``pad_token_id``.

Source: transformers, ``create_position_ids_from_input_ids``.
"""

_WITHOUT_LIMIT = frozenset(
    ("bloom", "funnel", "longt5", "mpt", "mt5", "t5", "transfo-xl", "umt5", "xlnet")
)
"""Models with relative positions; their ``max_position_embeddings`` or ``n_positions`` limits nothing."""

_RELATIVE_UNLESS_BIASED = frozenset(("deberta", "deberta-v2"))
"""Models with absolute positions only if ``position_biased_input`` is true, its default."""


def token_limit(facts: ModelFacts, default: int = DEFAULT_LENGTH) -> int:
    """Return the files' token limit, special tokens included, or the default."""
    positions = usable_positions(facts.json_beside(CONFIG))
    max_length = tokenizer_settings(facts).max_length
    limits = []
    for limit in (positions, max_length):
        if limit is not None and 2 <= limit <= MAX_LENGTH:
            limits.append(limit)
    return min(limits, default=default)


def usable_positions(config: Mapping[str, Any]) -> int | None:
    """Return the usable positions; None if unlimited or unknown."""
    kind = config.get("model_type")
    if kind in _WITHOUT_LIMIT:
        return None
    if kind in _RELATIVE_UNLESS_BIASED and config.get("position_biased_input") is False:
        return None
    count = config.get("max_position_embeddings", config.get("n_positions"))
    if type(count) is not int:
        return None
    if kind not in _BEHIND_PADDING:
        return count
    pad = config.get("pad_token_id")
    if type(pad) is not int or pad < 0:
        pad = _DEFAULT_PAD
    return count - 1 - pad
