"""The architectures of Hugging Face folders that are served through tasks.

A head is the end of a class of transformers. Its outputs have the names that optimum's
ONNX exports have, so that the same tasks read them. Source: huggingface/optimum-onnx,
exporters/onnx/model_configs.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class HeadOutput:
    """An output of a head.

    Attributes:
        free: dimensions whose size depends on the input.
        is_optional: whether some models of this kind lack it.
    """

    name: str
    free: tuple[int, ...] = (0,)
    is_optional: bool = False


@dataclass(frozen=True)
class Head:
    """A kind of model.

    Attributes:
        ends: ends of the names of its classes.
    """

    ends: tuple[str, ...]
    outputs: tuple[HeadOutput, ...]


LOGITS: Final = (HeadOutput("logits"),)
PIXEL_LOGITS: Final = (HeadOutput("logits", (0, 2, 3)),)
BOXES: Final = (HeadOutput("logits"), HeadOutput("pred_boxes"))
MASKS: Final = (
    HeadOutput("class_queries_logits"),
    HeadOutput("masks_queries_logits", (0, 2, 3)),
)
SPANS: Final = (HeadOutput("start_logits", (0, 1)), HeadOutput("end_logits", (0, 1)))
POOLED: Final = "pooler_output"
STATES: Final = (
    HeadOutput("last_hidden_state", (0, 1)),
    HeadOutput(POOLED, is_optional=True),
)

BASE: Final = Head(("Model",), STATES)
"""Models without a head: their states are embeddings of texts."""

HEADS: Final = (
    Head(
        (
            "ForImageClassification",
            "ForImageClassificationWithTeacher",
            "ForSequenceClassification",
            "ForAudioClassification",
        ),
        LOGITS,
    ),
    Head(("ForSemanticSegmentation",), PIXEL_LOGITS),
    Head(("ForObjectDetection",), BOXES),
    Head(("ForInstanceSegmentation", "ForUniversalSegmentation"), MASKS),
    Head(("ForQuestionAnswering", "ForQuestionAnsweringSimple"), SPANS),
    BASE,
)

MASKED: Final = "ForMaskedLM"
"""The end of networks that sentence-transformers use without their head."""

_CLASS: Final = re.compile(r"[A-Z]\w{1,99}")


def class_of(config: Mapping[str, Any]) -> str | None:
    """Return the class that ``config.json`` names, or None."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        return None
    name = names[0]
    if not isinstance(name, str) or _CLASS.fullmatch(name) is None:
        return None
    return name


def head_of(class_name: str, *, is_embedder: bool = False) -> Head | None:
    """Return the head of a class, or None for one that no task serves.

    Args:
        is_embedder: whether the folder is one of sentence-transformers.
    """
    if is_embedder and class_name.endswith(MASKED):
        return BASE
    for head in HEADS:
        if class_name.endswith(head.ends):
            return head
    return None
