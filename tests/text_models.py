"""Model facts and fake outputs for tasks on sound, text and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.selection import select_task
from pocketserve.tensors import TensorSpec
from vision_models import facts

_WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a of and to in is it was who what where when how did do not good bad "
    "film song bird house water great ##s ##ing ##ed ##er ##ly ##ness un ##believ ##able paris france capital "
    ". , ! ? ' - : ; ( ) b c d e f g h i j k l m n o p q r s t u v w x y z ##a ##b ##c ##d ##e ##f ##g ##h ##i "
    "##j ##k ##l ##m ##n ##o ##p ##q ##r ##t ##u ##v ##w ##x ##y ##z 0 1 2 3 4 5 6 7 8 9 ##0 ##1 ##2 ##3 ##4 "
    "##5 ##6 ##7 ##8 ##9 中 国 日 本 я ##я ß ##ß α ##α σ ##σ ς ##ς "
)
VOCABULARY = _WORDS.split()
"""A BERT vocabulary that can spell."""


def model(
    folder: Path,
    inputs: Sequence[TensorSpec],
    outputs: Mapping[str, tuple[int, ...]],
    manifest: Mapping[str, Any] | None = None,
    files: Mapping[str, Any] | None = None,
) -> ModelFacts:
    """A model in a folder of its own, with any inputs."""
    return dataclasses.replace(
        facts(folder, outputs, manifest, files), inputs=tuple(inputs)
    )


def task_of(*arguments: Any, **options: Any) -> Any:
    """The task that such a model gets."""
    return select_task(model(*arguments, **options))


def bert_inputs(length: int = -1, kind: str = "INT32") -> list[TensorSpec]:
    """The three inputs of a BERT."""
    return [
        TensorSpec(name, kind, (1, length))
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
