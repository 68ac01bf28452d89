"""Compare unconverted Hugging Face folders with transformers' own pipelines.

Each folder is what ``save_pretrained`` writes: no export, no ``model.toml``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from families.reference import (
    LABELS,
    Family,
    import_torchvision,
    open_picture,
    pictures,
)
from families.sound_classifiers import MODELS as SOUNDS
from families.sound_classifiers import sounds, wav_of, write_sound_classifier
from families.test_text_families import QUESTIONS, WINDOW, pipeline_answers
from families.test_vision_families import (
    CLASSIFICATION,
    DETECTION,
    ROWS,
    SEGMENTATION,
    assert_same_boxes,
    assert_same_scores,
    build,
    inputs_of,
    maskformer,
    shares_of,
)
from families.text_classifiers import MODELS as TEXTS_MODELS
from families.text_classifiers import expected
from families.text_reference import (
    PAIRS,
    TEXTS,
    TRANSFORMERS,
    Served,
    by_label,
    differences,
    write_classifier,
)
from families.text_vectors import (
    ANSWERERS,
    EMBEDDERS,
    RERANKERS,
    write_answerer,
    write_embedder,
    write_reranker,
)

# The libraries warn of their own deprecations.
pytestmark = [pytest.mark.families, pytest.mark.filterwarnings("ignore")]

FOLDER = ("Hugging Face folder",)
TOLERANCE = 1e-4
TEXT_CLASSIFIERS = (
    "BERT",
    "BERT, several labels",
    "DistilBERT",
    "RoBERTa",
    "DeBERTa V2",
    "GPT-2",
    "ModernBERT",
)
EMBEDDING = ("pooling mean", "dense", "RoBERTa", "MPNet")
RERANKING = ("CrossEncoder, BERT", "CrossEncoder, RoBERTa")
ANSWERING = ("BERT", "DistilBERT", "ELECTRA")
SOUND_CLASSIFIERS = ("Wav2Vec2", "Wav2Vec2, attention mask", "HuBERT", "AST", "Whisper")
PICTURE_CLASSIFIERS = ("ViT", "ConvNext", "ResNet", "Swin", "DistilledDeiT")
DETECTORS = ("Detr", "Yolos", "RTDetr")
SEGMENTERS = ("Segformer", "Beit")

FAMILIES = [
    *(
        Family(name, TRANSFORMERS, "text-classification", FOLDER)
        for name in (*TEXT_CLASSIFIERS, *RERANKING)
    ),
    *(Family(name, TRANSFORMERS, "text-embedding", FOLDER) for name in EMBEDDING),
    *(Family(name, TRANSFORMERS, "question-answering", FOLDER) for name in ANSWERING),
    *(
        Family(name, TRANSFORMERS, "audio-classification", FOLDER)
        for name in SOUND_CLASSIFIERS
    ),
    *(
        Family(name, TRANSFORMERS, CLASSIFICATION, FOLDER)
        for name in PICTURE_CLASSIFIERS
    ),
    *(Family(name, TRANSFORMERS, DETECTION, FOLDER) for name in DETECTORS),
    *(
        Family(name, TRANSFORMERS, SEGMENTATION, FOLDER)
        for name in (*SEGMENTERS, "MaskFormer")
    ),
]


@dataclass(frozen=True)
class Place:
    """Where a test writes its folder, and how it asks."""

    folder: Path
    scratch: Path
    start: Callable[[], Served]

    def keep_folder(self, network: Any, shards: str = "5GB") -> None:
        """Replace the export by the network's own files."""
        for name in ("model.onnx", "model.toml"):
            (self.folder / name).unlink(missing_ok=True)
        network.save_pretrained(self.folder, max_shard_size=shards)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import_torchvision()
    started: list[Served] = []

    def start() -> Served:
        started.append(Served(tmp_path / "models", tmp_path / "state"))
        return started[-1]

    yield Place(tmp_path / "models" / "m", tmp_path / "scratch", start)
    for one in started:
        one.close()


@pytest.mark.parametrize("name", TEXT_CLASSIFIERS)
def test_text_classifiers(place: Place, name: str) -> None:
    spec = TEXTS_MODELS[name]
    pipeline = write_classifier(spec, place.folder)
    place.keep_folder(pipeline.model, shards="40KB")
    assert len(list(place.folder.glob("*.safetensors"))) > 1
    server = place.start()
    inputs: list[Any] = list(TEXTS)
    if spec.pairs:
        inputs += [{"text": text, "text_pair": other} for text, other in PAIRS]
    answers = [by_label(server.ask("m", content, top_k=10)) for content in inputs]
    for content, answer in zip(inputs, answers, strict=True):
        assert differences(answer, expected(pipeline, content, spec)) == [], content
    assert len({tuple(sorted(answer.items())) for answer in answers}) > 1


@pytest.mark.parametrize("name", EMBEDDING)
def test_embedders(place: Place, name: str) -> None:
    exported = place.scratch / "exported"
    sentences = write_embedder(EMBEDDERS[name], exported, place.scratch / "network")
    sentences.save(str(place.folder))
    theirs = sentences.encode(list(TEXTS))
    answers = place.start().ask("m", list(TEXTS))
    ours = np.array([entry["embedding"] for entry in answers])
    tolerance = TOLERANCE * max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(ours, theirs, atol=tolerance)


@pytest.mark.parametrize("name", RERANKING)
def test_rerankers(place: Place, name: str) -> None:
    spec, activation = RERANKERS[name]
    exported = place.scratch / "exported"
    encoder = write_reranker(spec, activation, exported, place.scratch / "network")
    encoder.save_pretrained(str(place.folder))
    theirs = encoder.predict([list(pair) for pair in PAIRS])
    content = [{"text": text, "text_pair": other} for text, other in PAIRS]
    answer = place.start().ask("m", content)
    scores = [entry["score"] for entry in answer]
    assert scores == pytest.approx(theirs.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("name", ANSWERING)
def test_answerers(place: Place, name: str) -> None:
    network, tokenizer = write_answerer(ANSWERERS[name], place.folder)
    place.keep_folder(network)
    settings = place.folder / "tokenizer_config.json"
    content = json.loads(settings.read_text())
    settings.write_text(json.dumps({**content, "model_max_length": WINDOW}))
    server = place.start()
    for question, context in QUESTIONS:
        best = pipeline_answers(network, tokenizer, question, context, 1)[0]
        asked = {"question": question, "context": context}
        (answer,) = server.ask("m", asked, top_k=1)
        assert answer["score"] == pytest.approx(best["score"], abs=TOLERANCE)
        start = best["end"] - len(best["answer"].lstrip())
        assert (answer["start"], answer["end"]) == (start, best["end"])


@pytest.mark.parametrize("name", SOUND_CLASSIFIERS)
def test_sound_classifiers(place: Place, name: str) -> None:
    pipeline = write_sound_classifier(SOUNDS[name], place.folder)
    place.keep_folder(pipeline.model)
    server = place.start()
    answers = []
    for samples in sounds():
        answer = by_label(server.ask("m", wav_of(samples), top_k=10))
        assert differences(answer, by_label(pipeline(samples, top_k=None))) == []
        answers.append(answer)
    assert len({max(answer.values()) for answer in answers}) > 1


def spread_head(model: Any, factor: float) -> None:
    """Enlarge the weights of the last layers, so that classes differ."""
    import torch

    ends = (
        "classifier.weight",
        "cls_classifier.weight",
        "class_labels_classifier.weight",
        "classifier.1.weight",
        "class_labels_classifier.layers.2.weight",
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(ends) or ("class_embed" in name and weight.ndim > 1):
                weight.mul_(factor)


def write_vision(place: Place, name: str, task: str, factor: float) -> tuple[Any, Any]:
    """Write a folder of a picture model; return the model and its processor."""
    _, spec = ROWS[f"{name} {task}"]
    model, processor = build(spec, task)
    spread_head(model, factor)
    place.folder.mkdir(parents=True)
    place.keep_folder(model)
    processor.save_pretrained(place.folder)
    return model, processor


@pytest.mark.parametrize("name", PICTURE_CLASSIFIERS)
def test_picture_classifiers(place: Place, name: str) -> None:
    import transformers

    model, processor = write_vision(place, name, CLASSIFICATION, 20)
    server = place.start()
    pipeline = transformers.pipeline(
        CLASSIFICATION, model=model, image_processor=processor, device="cpu"
    )
    answers = []
    for file in pictures():
        answer = server.ask("m", file)
        assert_same_scores(answer, pipeline(open_picture(file), top_k=5))
        answers.append(by_label(answer))
    assert len({max(answer.values()) for answer in answers}) > 1


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors(place: Place, name: str) -> None:
    import torch

    model, processor = write_vision(place, name, DETECTION, 4)
    server = place.start()
    threshold = 0.2
    for file in pictures():
        (batch,) = inputs_of(processor, [file])
        size = open_picture(file).size
        with torch.no_grad():
            raw = model(**batch)
        (found,) = processor.post_process_object_detection(
            raw, threshold=threshold, target_sizes=[(size[1], size[0])]
        )
        rows = []
        for label, score, box in zip(
            found["labels"].tolist(),
            found["scores"].tolist(),
            found["boxes"].tolist(),
            strict=True,
        ):
            rows.append((LABELS[label], score, *box))
        assert rows
        assert_same_boxes(server.ask("m", file, threshold=threshold), rows, size)


@pytest.mark.parametrize("name", SEGMENTERS)
def test_segmenters(place: Place, name: str) -> None:
    import torch

    model, processor = write_vision(place, name, SEGMENTATION, 4)
    server = place.start()
    for file in pictures():
        (batch,) = inputs_of(processor, [file])
        with torch.no_grad():
            logits = model(**batch).logits[0].numpy()
        classes = logits.argmax(axis=0)
        assert_same_shares(server.ask("m", file), classes)


def assert_same_shares(predictions: list[dict[str, Any]], classes: Any) -> None:
    shares = {entry["label"]: entry["share"] for entry in predictions}
    assert shares == pytest.approx(shares_of(classes), abs=6 / classes.size)


def test_maskformer(place: Place) -> None:
    import torch
    import transformers

    model = maskformer()
    processor = transformers.MaskFormerImageProcessorPil(
        size={"shortest_edge": 48, "longest_edge": 120}, size_divisor=32
    )
    place.folder.mkdir(parents=True)
    place.keep_folder(model)
    processor.save_pretrained(place.folder)
    server = place.start()
    for file in pictures():
        (batch,) = inputs_of(processor, [file])
        with torch.no_grad():
            answer = model(pixel_values=batch["pixel_values"])
        raw = SimpleNamespace(
            class_queries_logits=answer.class_queries_logits,
            masks_queries_logits=answer.masks_queries_logits,
        )
        (classes,) = processor.post_process_semantic_segmentation(raw)
        assert_same_shares(server.ask("m", file), classes.numpy())
