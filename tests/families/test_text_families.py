"""Compare text answers with transformers and sentence-transformers."""

from __future__ import annotations

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
    query, vectors = (
        sentences.encode_query([TEXTS[0]]),
        sentences.encode_document(documents),
    )
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


QUESTIONS = (
    ("who was it", "anna lives in oslo and ben likes tea"),
    ("who lives in Oslo?", "Ben likes tea. Anna lives in Oslo."),
    ("what was great", "the song was great, the film was bad"),
    ("a bird", "nobody knows the bird by the water"),
    ("the house", "a house, a song; the film!"),
)


def best_span(
    network: Any, tokenizer: Any, question: str, context: str
) -> tuple[int, int, float]:
    """Return the best answer's range and score, like transformers' pipeline before 5."""
    import torch

    encoded = tokenizer(
        question, context, return_tensors="pt", return_offsets_mapping=True
    )
    offsets = encoded.pop("offset_mapping")[0].tolist()
    is_context = np.array([number == 1 for number in encoded.sequence_ids(0)])
    if "token_type_ids" in encoded and network.config.model_type in (
        "distilbert",
        "roberta",
    ):
        encoded.pop("token_type_ids")
    with torch.no_grad():
        output = network(**encoded)
    probabilities = []
    for logits in (output.start_logits, output.end_logits):
        usable = is_context.copy()
        usable[0] = True
        row = np.where(usable, logits[0].double().numpy(), -10_000.0)
        powers = np.exp(row - row.max())
        row = powers / powers.sum()
        probabilities.append(np.where(is_context, row, 0.0))
    scores = np.triu(np.outer(*probabilities))
    start, end = np.unravel_index(int(scores.argmax()), scores.shape)
    return offsets[start][0], offsets[end][1], float(scores[start, end])


@pytest.mark.parametrize("name", ANSWERERS)
def test_answers(tmp_path: Path, served: Any, name: str) -> None:
    network, tokenizer = write_answerer(ANSWERERS[name], tmp_path / "models" / "m")
    server = served()
    for question, context in QUESTIONS:
        start, end, score = best_span(network, tokenizer, question, context)
        answer = server.ask("m", {"question": question, "context": context}, top_k=1)[0]
        # A token of a byte-level vocabulary begins with its space.
        start += len(context[start:end]) - len(context[start:end].lstrip())
        assert (answer["start"], answer["end"]) == (start, end)
        assert answer["score"] == pytest.approx(score, abs=TOLERANCE)
