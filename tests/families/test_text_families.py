"""Compare text answers with transformers and sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families.text_classifiers import FAMILIES as CLASSIFIERS
from families.text_classifiers import MODELS, expected
from families.text_reference import (
    PAIRS,
    TEXTS,
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
from families.text_vectors import FAMILIES as VECTORS

# The libraries warn of their own deprecations.
pytestmark = [pytest.mark.families, pytest.mark.filterwarnings("ignore")]

FAMILIES = [*CLASSIFIERS, *VECTORS]
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """Return a function that serves the folder ``models/m`` once it is written."""
    started: list[Served] = []

    def start() -> Served:
        started.append(Served(tmp_path / "models", tmp_path / "state"))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize("name", MODELS)
def test_classifiers(tmp_path: Path, served: Any, name: str) -> None:
    spec = MODELS[name]
    pipeline = write_classifier(spec, tmp_path / "models" / "m")
    server = served()
    inputs: list[Any] = list(TEXTS)
    if spec.pairs:
        inputs += [{"text": text, "text_pair": other} for text, other in PAIRS]
    answers = [by_label(server.ask("m", content, top_k=10)) for content in inputs]
    for content, answer in zip(inputs, answers, strict=True):
        assert differences(answer, expected(pipeline, content, spec)) == [], content
    assert len({tuple(sorted(answer.items())) for answer in answers}) > 1


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embedders(tmp_path: Path, served: Any, name: str) -> None:
    sentences = write_embedder(
        EMBEDDERS[name], tmp_path / "models" / "m", tmp_path / "scratch"
    )
    server = served()
    theirs = sentences.encode(list(TEXTS))
    ours = np.array([entry["embedding"] for entry in server.ask("m", list(TEXTS))])
    np.testing.assert_allclose(
        ours, theirs, atol=TOLERANCE * max(1.0, float(np.abs(theirs).max()))
    )
    documents = list(TEXTS[1:])
    compared = server.ask("m", {"query": TEXTS[0], "texts": documents})
    scores = {entry["index"]: entry["score"] for entry in compared}
    query = sentences.encode_query([TEXTS[0]])
    vectors = sentences.encode_document(documents)
    similarities = sentences.similarity(query, vectors)[0].tolist()
    assert [scores[index] for index in range(len(documents))] == pytest.approx(
        similarities, rel=1e-4, abs=1e-4
    )


@pytest.mark.parametrize("name", RERANKERS)
def test_rerankers(tmp_path: Path, served: Any, name: str) -> None:
    spec, activation = RERANKERS[name]
    encoder = write_reranker(
        spec, activation, tmp_path / "models" / "m", tmp_path / "scratch"
    )
    theirs = encoder.predict([list(pair) for pair in PAIRS])
    answer = served().ask(
        "m", [{"text": text, "text_pair": other} for text, other in PAIRS]
    )
    assert [entry["score"] for entry in answer] == pytest.approx(
        theirs.tolist(), abs=TOLERANCE
    )


WINDOW = 36
QUESTIONS = (
    ("who was it", "anna lives in oslo and ben likes tea"),
    ("who lives in Oslo?", "Ben likes tea. Anna lives in Oslo."),
    ("what was great", "the song was great, the film was bad"),
    ("a bird", "nobody knows the bird by the water"),
    ("the house", "a house, a song; the film!"),
)


LONG_QUESTIONS = tuple(
    ("who lives in Oslo?", " ".join(sentence for _ in range(count)))
    for count, sentence in (
        (3, "Anna lives in Oslo; Ben likes tea."),
        (5, "the film was great, unbelievable: nothing works!"),
        (9, "naïve birds by the Water"),
        (14, "a house, a song; the film!"),
        (20, "nobody knows the bird xyz123"),
    )
)


def pipeline_answers(
    network: Any, tokenizer: Any, question: str, context: str, top_k: int
) -> list[dict[str, Any]]:
    """Return the answers of the pipeline that transformers removed in version 5.

    Windows and words are the tokenizer's own.
    """
    encoded = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=WINDOW,
        stride=WINDOW // 2,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    merged: dict[str, dict[str, Any]] = {}
    for number in range(len(encoded["input_ids"])):
        usable = [part == 1 for part in encoded.sequence_ids(number)]
        table = span_scores(network, encoded, number, usable)
        order = np.argsort(-table, axis=None, kind="stable")
        for flat in order[: 2 * top_k + 10]:
            first, last = np.unravel_index(int(flat), table.shape)
            if not (usable[first] and usable[last]):
                continue
            first_word = encoded.token_to_word(number, int(first))
            last_word = encoded.token_to_word(number, int(last))
            start = encoded.word_to_chars(number, first_word, 1).start
            end = encoded.word_to_chars(number, last_word, 1).end
            text = context[start:end]
            entry = {
                "answer": text,
                "start": start,
                "end": end,
                "score": 0.0,
            }
            entry = merged.setdefault(text.lower(), entry)
            entry["score"] += float(table[first, last])
    ranked = sorted(merged.values(), key=lambda entry: -entry["score"])
    return ranked[:top_k]


def span_scores(
    network: Any, encoded: Any, number: int, usable: list[bool]
) -> np.ndarray[Any, Any]:
    """Return the score of each first and last token of a window."""
    import torch

    inputs = {"input_ids": torch.tensor([encoded["input_ids"][number]])}
    if network.config.model_type not in ("distilbert", "roberta"):
        inputs["token_type_ids"] = torch.tensor([encoded["token_type_ids"][number]])
    with torch.no_grad():
        output = network(**inputs)
    masked = torch.tensor([not flag for flag in usable])
    masked[0] = False
    rows = []
    for logits in (output.start_logits, output.end_logits):
        row = logits[0].double().masked_fill(masked, -10_000.0).softmax(dim=0)
        row[0] = 0.0
        rows.append(row)
    scores: np.ndarray[Any, Any] = torch.outer(*rows).triu().tril(14).numpy()
    return scores


@pytest.mark.parametrize("name", ANSWERERS)
def test_answers(tmp_path: Path, served: Any, name: str) -> None:
    folder = tmp_path / "models" / "m"
    network, tokenizer = write_answerer(ANSWERERS[name], folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_max_length"] = WINDOW
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    server = served()
    for top_k, (question, context) in enumerate((*QUESTIONS, *LONG_QUESTIONS), 1):
        expected = pipeline_answers(network, tokenizer, question, context, top_k)
        content = {"question": question, "context": context}
        answers = server.ask("m", content, top_k=top_k)
        scores = [entry["score"] for entry in answers]
        assert scores == pytest.approx(
            [entry["score"] for entry in expected], abs=TOLERANCE
        )
        best = expected[0]
        # A token of a byte-level vocabulary begins with its space.
        start = best["end"] - len(best["answer"].lstrip())
        assert (answers[0]["start"], answers[0]["end"]) == (start, best["end"])
