"""TFLite metadata of text models: tokenizer, input roles, outputs, labels."""

from __future__ import annotations

import dataclasses
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.runtimes.metadata import ModelMetadata, TensorMetadata
from pocketserve.runtimes.metadata_parts import (
    AssociatedFile,
    AudioProperties,
    BertTokenizer,
    Content,
    FileType,
    ProcessUnit,
    RegexTokenizer,
)
from pocketserve.runtimes.registry import FORMATS
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.selection import select_task
from pocketserve.tensors import TensorSpec
from text_models import VOCABULARY, model

VOCAB = AssociatedFile("vocab.txt", type=FileType.VOCABULARY)
LABELS = AssociatedFile("labels.txt", type=FileType.TENSOR_AXIS_LABELS)
GERMAN = AssociatedFile("labels-de.txt", type=FileType.TENSOR_AXIS_LABELS, locale="de")
ENGLISH = LABELS._replace(locale="en")
FILES = {
    "vocab.txt": "\n".join(VOCABULARY),
    "labels.txt": "bad\ngood",
    "labels-de.txt": "schlecht\ngut",
    "words.txt": "<PAD> 0\n<START> 1\n<UNKNOWN> 2\ngood 3\nfilm 4\n",
}
THREE = [TensorSpec(f"serving_default_input_{n}:0", "INT32", (1, 8)) for n in range(3)]


def task_of(
    folder: Path, inputs: list[TensorSpec], outputs: Any, metadata: ModelMetadata
) -> Any:
    """Return the task of a TFLite file with this metadata and these archived files."""
    facts = model(folder, inputs, outputs)
    path = folder / "m" / "m.tflite"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    kind = next(kind for kind in FORMATS if kind.name == "tflite")
    version = facts.version._replace(format=kind, path=path)
    facts = dataclasses.replace(facts, version=version)
    facts.__dict__["metadata"] = metadata
    return select_task(facts)


def described(
    inputs: list[str], outputs: list[TensorMetadata], unit: ProcessUnit
) -> ModelMetadata:
    """Return metadata with a tokenizer for all inputs."""
    tensors = tuple(TensorMetadata(name) for name in inputs)
    return ModelMetadata(
        inputs=tensors, outputs=tuple(outputs), input_process_units=(unit,)
    )


def test_a_bert_classifier(tmp_path: Path) -> None:
    """Metadata names identify inputs with generic names.

    Labels have two languages.
    """
    outputs = [TensorMetadata("probability", associated_files=(ENGLISH, GERMAN))]
    metadata = described(
        ["ids", "segment_ids", "mask"], outputs, BertTokenizer((VOCAB,))
    )
    task = task_of(tmp_path, THREE, {"Identity": (1, 2)}, metadata)
    assert task.name == "text-classification"
    run = task.prepare(memoryview(b"good film")).runs[0]
    ids, types, mask = (run[spec.name][0].tolist() for spec in THREE)
    assert ids[:4] == [
        VOCABULARY.index(word) for word in ("[CLS]", "good", "film", "[SEP]")
    ]
    assert types == [0] * 8
    assert mask == [1] * 4 + [0] * 4
    scores = [{"Identity": np.array([[0.2, 0.8]], np.float32)}]
    assert task.answer(scores, AnswerOptions(1), False)[0]["label"] == "good"
    assert (
        task.answer(scores, AnswerOptions(1, language="de-CH"), False)[0]["label"]
        == "gut"
    )


def test_a_question_answering_model(tmp_path: Path) -> None:
    """The outputs' metadata names identify start and end, in any order."""
    outputs = [TensorMetadata("end_logits"), TensorMetadata("start_logits")]
    metadata = described(
        ["ids", "mask", "segment_ids"], outputs, BertTokenizer((VOCAB,))
    )
    inputs = [spec._replace(shape=(1, 16)) for spec in THREE]
    task = task_of(
        tmp_path, inputs, {"Identity": (1, 16), "Identity_1": (1, 16)}, metadata
    )
    assert task.name == "question-answering"
    asked = task.prepare(
        memoryview(
            json.dumps({"question": "who?", "context": "good film, bad song"}).encode()
        )
    )
    end = np.zeros((1, 16))
    start = np.zeros((1, 16))
    end[0, 5], start[0, 4] = 9, 9
    best = task.answer(
        [{"Identity": end, "Identity_1": start}], AnswerOptions(1), asked.context
    )[0]
    assert best["answer"] == "good film"


def test_words_are_split_by_a_delimiter(tmp_path: Path) -> None:
    """A vocabulary with numbers, and a tokenizer at the input itself."""
    unit = RegexTokenizer(r"[^\w']+", (AssociatedFile("words.txt"),))
    tensor = TensorMetadata("input_text", process_units=(unit,))
    outputs = (TensorMetadata("probability", associated_files=(LABELS,)),)
    metadata = ModelMetadata(inputs=(tensor,), outputs=outputs)
    task = task_of(tmp_path, THREE[:1], {"Identity": (1, 2)}, metadata)
    assert task.prepare(memoryview("good, new film…".encode())).runs[0][
        THREE[0].name
    ].tolist() == [[1, 3, 2, 4, 0, 0, 0, 0]]


def test_a_sound_with_its_rate(tmp_path: Path) -> None:
    """Rate and channels come from the metadata.

    Missing labels are not guessed.
    """
    sound = TensorMetadata(
        "audio_clip", content=Content("audio", AudioProperties(8000, 1))
    )
    labelled = ModelMetadata(
        inputs=(sound,), outputs=(TensorMetadata("scores", associated_files=(LABELS,)),)
    )
    inputs = [TensorSpec("x", "FP32", (1, 4000))]
    task = task_of(tmp_path, inputs, {"y": (1, 2)}, labelled)
    assert task.name == "audio-classification"
    assert "8000 Hz" in task.describe()["preprocessing"]
    bare = ModelMetadata(inputs=(sound,), outputs=(TensorMetadata("scores"),))
    assert task_of(tmp_path, inputs, {"y": (1, 2)}, bare).name == "tensors"


def test_a_missing_vocabulary(tmp_path: Path) -> None:
    """The model is served as tensors, and the reason names the file."""
    outputs = [TensorMetadata("probability", associated_files=(LABELS,))]
    metadata = described(
        ["ids", "mask", "segment_ids"],
        outputs,
        BertTokenizer((AssociatedFile("v.txt"),)),
    )
    task = task_of(tmp_path, THREE, {"Identity": (1, 2)}, metadata)
    assert task.name == "tensors"
    assert re.search(r"vocabulary cannot be read.*v\.txt", task.problem)
