"""Advice for models without a manifest that resemble those of a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pocketserve.tasks.selection import select_task
from pocketserve.tasks.tensors import TASK_ADVICE, Tensors
from pocketserve.tensors import TensorSpec
from pocketserve_wire import ApiError
from vision_models import PICTURE, facts

TOKENS = TensorSpec("input_ids", "INT64", (-1, -1))
ROW = TensorSpec("x", "FP32", (-1, 4))
SOUND = TensorSpec("input_values", "FP32", (-1, -1))
BERT: dict[str, Any] = {
    "config.json": {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "no", "1": "yes"},
    }
}
ADVICE: dict[
    str, tuple[TensorSpec, Mapping[str, tuple[int, ...]], Mapping[str, Any], str]
] = {
    "a picture": (
        PICTURE,
        {"y": (1, 5)},
        {},
        'it looks like a picture classifier: write task = "image-classification"',
    ),
    "two labels for five classes": (
        *(PICTURE, {"y": (-1, 5)}, {"labels.txt": "a\nb\n"}),
        'a picture classifier with 2 labels for 5 classes: complete them, or write task = "image-classification" into',
    ),
    "Hugging Face": (
        *(TOKENS, {"logits": (-1, 2)}, BERT),
        'config.json calls it BertForSequenceClassification: write task = "text-classification" into model.toml',
    ),
    "an embedder": (
        *(TOKENS, {"tokens": (-1, -1, 8)}, {"1_Pooling/config.json": {}}),
        'it pools tokens, as embedders of sentences do: write task = "text-embedding"',
    ),
    "scores of texts": (
        *(TOKENS, {"y": (-1, 3)}, {"vocab.txt": "a"}),
        'a tokenizer lies beside it, and it returns few scores: write task = "text-classification"',
    ),
    "starts and ends": (
        TOKENS,
        {"a": (-1, -1), "b": (-1, -1)},
        {"tokenizer.json": {}},
        '"question-answering"',
    ),
    "vectors of tokens": (
        TOKENS,
        {"y": (-1, -1, 384)},
        {"spiece.model": "x"},
        '"text-embedding"',
    ),
    "sounds, by the input": (
        SOUND,
        {"logits": (-1, 2)},
        BERT,
        '"audio-classification"',
    ),
    "sounds, by the type": (
        *(
            ROW,
            {"logits": (-1, 2)},
            {"config.json": {**BERT["config.json"], "model_type": "hubert"}},
        ),
        '"audio-classification"',
    ),
    "scikit-learn's map": (
        ROW,
        {"label": (-1,), "p.keys": (3,), "p.values": (-1, 3)},
        {},
        '"tabular-classification"',
    ),
    "scikit-learn's array": (
        ROW,
        {"label": (-1,), "probabilities": (-1, 3)},
        {},
        '"tabular-classification"',
    ),
}
NONE: dict[str, tuple[TensorSpec, Mapping[str, tuple[int, ...]], Mapping[str, Any]]] = {
    "a picture in, a picture out": (PICTURE, {"y": PICTURE.shape}, {}),
    "one score and no labels": (PICTURE, {"y": (1, 1)}, {}),
    "a row in, a row out": (ROW, {"y": (-1, 2)}, {}),
    "another architecture": (
        TOKENS,
        {"y": (-1, -1, 9)},
        {"config.json": {"architectures": ["BertForMaskedLM"]}},
    ),
    "a tag a token": (TOKENS, {"y": (-1, -1, 9)}, {"vocab.txt": "a"}),
    "a row beside a tokenizer": (ROW, {"y": (-1, 3)}, {"vocab.txt": "a"}),
    "no architecture": (
        TOKENS,
        {"y": (-1, 2)},
        {"config.json": {"architectures": [5]}},
    ),
    "a broken configuration": (TOKENS, {"y": (-1, 2)}, {"config.json": "{"}),
}


def served(
    folder: Path,
    image: TensorSpec,
    outputs: Mapping[str, tuple[int, ...]],
    files: Mapping[str, Any],
) -> Any:
    """Return the task of such a model."""
    (folder / "m" / "1_Pooling").mkdir(parents=True)
    return select_task(facts(folder, outputs, files=files, image=image))


@pytest.mark.parametrize("case", ADVICE)
def test_the_advised_line_of_the_manifest(tmp_path: Path, case: str) -> None:
    """``inspect`` shows it, and so does the error for any input that isn't numbers."""
    *model, advice = ADVICE[case]
    task = served(tmp_path, *model)
    assert isinstance(task, Tensors)
    assert advice in task.advice
    with pytest.raises(ApiError) as caught:
        task.prepare(memoryview(b"\x89PNG"))
    assert caught.value.message.endswith(f"or a .npy file; {task.advice}")


@pytest.mark.parametrize("case", NONE)
def test_models_of_unknown_kinds_get_no_advice(tmp_path: Path, case: str) -> None:
    task = served(tmp_path, *NONE[case])
    assert isinstance(task, Tensors)
    assert not task.advice
    with pytest.raises(ApiError) as caught:
        task.prepare(memoryview(b"\x89PNG"))
    assert caught.value.message.endswith(f"or a .npy file; {TASK_ADVICE}")


def test_no_advice_for_the_tensors_task(tmp_path: Path) -> None:
    model = facts(tmp_path, {"y": (1, 5)}, {"task": "tensors"})
    assert not getattr(select_task(model), "advice", "")


def test_no_advice_for_a_bare_file(tmp_path: Path) -> None:
    """A manifest beside it would belong to no model."""
    model = facts(tmp_path, {"y": (1, 5)})
    (bare,) = [
        select_task(
            type(model)(
                model.entry._replace(folder=tmp_path),
                model.version,
                model.inputs,
                model.outputs,
            )
        )
    ]
    assert getattr(bare, "advice", "").endswith(
        "into a model.toml beside the file, in a folder of their own, or: pocketserve init m"
    )
