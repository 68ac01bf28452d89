"""Provide model facts and fake outputs for sound, text and table tasks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    """Return a model in its own folder, with any inputs."""
    return dataclasses.replace(
        facts(folder, outputs, manifest, files), inputs=tuple(inputs)
    )


def task_of(*arguments: Any, **options: Any) -> Any:
    """Return the task that such a model gets."""
    return select_task(model(*arguments, **options))


def bert_inputs(length: int = -1, kind: str = "INT32") -> list[TensorSpec]:
    """Return the three inputs of a BERT."""
    return [
        TensorSpec(name, kind, (1, length))
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]


RERANKER_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad")


def reranker_graph(onnx: Any, classes: int) -> Any:
    """Return the graph of :func:`write_reranker`."""
    helper = onnx.helper
    integer = onnx.TensorProto.INT64
    real = onnx.TensorProto.FLOAT
    inputs = []
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        inputs.append(helper.make_tensor_value_info(name, integer, ["b", "s"]))
    outputs = [helper.make_tensor_value_info("logits", real, ["b", classes])]

    signs = [0.0, *range(1, classes)]
    if classes == 1:
        signs = [1.0]
    constants = {
        "two": np.float32(2),
        "axis": np.array([1]),
        "signs": np.array([signs], np.float32),
        "zero": np.float32(0),
    }
    initializers = []
    for name, value in constants.items():
        tensor = onnx.numpy_helper.from_array(np.asarray(value), name)
        initializers.append(tensor)

    nodes = [
        helper.make_node("Cast", ["token_type_ids"], ["types"], to=real),
        helper.make_node("Cast", ["input_ids"], ["ids"], to=real),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=real),
        helper.make_node("Add", ["ids", "mask"], ["used"]),
        helper.make_node("Mul", ["used", "zero"], ["nothing"]),
        helper.make_node("Add", ["types", "nothing"], ["seconds"]),
        helper.make_node("ReduceSum", ["seconds", "axis"], ["count"], keepdims=1),
        helper.make_node("Sub", ["count", "two"], ["logit"]),
        helper.make_node("Mul", ["logit", "signs"], ["logits"]),
    ]
    return helper.make_graph(nodes, "reranker", inputs, outputs, initializers)


def write_reranker(folder: Path, classes: int = 1) -> None:
    """Write a classifier whose logits are the second text's token count less 2."""
    onnx = pytest.importorskip("onnx")
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(RERANKER_WORDS) + "\n")
    labels = {str(number): f"LABEL_{number}" for number in range(classes)}
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "id2label": labels,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.toml").write_text('task = "text-classification"\n')

    graph = reranker_graph(onnx, classes)
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
