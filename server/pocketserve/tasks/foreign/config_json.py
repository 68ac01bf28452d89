"""Keys of ``config.json``, which Hugging Face's libraries write beside a model.

Most of its keys describe the network, which the model file contains already. The rows are those that decide how its
input is made or how its outputs are read.
"""

from __future__ import annotations

from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key

_CONFIG = "huggingface/transformers, configuration_utils.py"

TABLE = ForeignFile(
    "config.json",
    (
        Key("architectures", Effect.APPLIED, _CONFIG),
        Key("id2label", Effect.APPLIED, _CONFIG),
        Key("label2id", Effect.HARMLESS, _CONFIG),
        Key("max_position_embeddings", Effect.APPLIED, _CONFIG),
        Key("problem_type", Effect.APPLIED, _CONFIG),
    ),
    reports_unknown=False,
)
