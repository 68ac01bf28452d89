"""Serve the small models of the recipe ``words``: questions, phrases, books."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from pocketserve_client import Client

pytestmark = pytest.mark.live

FOLDER = Path(__file__).parent / "models"
CONTEXT = (
    "ben likes tea. anna lives in oslo. carla works as a pilot. ben lives in rome."
)
MAX_BYTES = 400_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on these models."""
    running = start_server(tmp_path_factory.mktemp("words-models"), FOLDER)
    yield running
    assert running.stop() == 0


@pytest.fixture
def ask(server: Server) -> Any:
    """Return a function that gives a model's entries over HTTP: ``ask(model, JSON)``."""

    def send(model: str, content: Any, query: str = "") -> Any:
        answer = server.call(
            "POST", f"/predictions/{model}{query}", data=json.dumps(content).encode()
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["predictions"]

    return send


QUESTIONS = {
    "where does anna live?": "oslo",
    "Where does BEN live?": "rome",
    "what does ben like?": "tea",
    "who works as a pilot?": "carla",
    "who lives in oslo?": "anna",
}


def test_questions_are_answered(ask: Any) -> None:
    """Most are, and each answer is the text at its position."""
    right = 0
    for question, wanted in QUESTIONS.items():
        found = ask("answers", {"question": question, "context": CONTEXT})
        assert all(
            CONTEXT[entry["start"] : entry["end"]] == entry["answer"] for entry in found
        )
        assert [entry["score"] for entry in found] == sorted(
            (entry["score"] for entry in found), reverse=True
        )
        right += found[0]["answer"] == wanted
    assert right >= len(QUESTIONS) - 1


def test_an_answer_in_a_long_context_is_found(ask: Any) -> None:
    """It follows more text than the model reads at once, and its position counts in the
    whole.
    """
    before = (
        "felix likes dogs. greta likes maps. hugo works as a cook. ida was born in cairo. "
        * 12
    )
    best = ask(
        "answers",
        {"question": "what does tina like?", "context": before + "tina likes cheese."},
        "?top_k=1",
    )
    assert best[0]["answer"] == "cheese"
    assert best[0]["start"] == len(before) + len("tina likes ")


def test_similar_phrases_have_near_vectors(ask: Any) -> None:
    """Each vector has length 1."""
    found = ask("phrases", ["turn on the lamp", "play a song"])
    assert [entry["index"] for entry in found] == [0, 1]
    np.testing.assert_allclose(
        [np.linalg.norm(entry["embedding"]) for entry in found], 1, rtol=1e-5
    )
    texts = [
        "play a song",
        "please switch on the light",
        "what is the time",
        "call my mother",
    ]
    near = ask("phrases", {"query": "could you turn on the lamp", "texts": texts})
    assert near[0]["index"] == 1
    assert near[0]["score"] > 0.8 > near[1]["score"]


def test_books_are_recommended_by_taste(ask: Any) -> None:
    """A reader of gardening books gets more of them, and no book twice."""
    taken = ["Wild Herbs", "Growing Roses", "Urban Herbs"]
    found = ask("shelf", taken)
    titles = [entry["label"] for entry in found]
    assert len(titles) == len(set(titles)) == 10
    assert not set(titles) & set(taken)
    assert all("Roses" in title or "Herbs" in title for title in titles[:5])
    by_number = ask("shelf", {"items": [entry["index"] for entry in found[:2]]})
    assert not {entry["index"] for entry in by_number} & {
        entry["index"] for entry in found[:2]
    }


def test_every_client_gets_the_same_answer(
    server: Server, ask: Any, tmp_path: Path
) -> None:
    """Our client takes a dict or a list, the command JSON, curl a file."""
    asked = {"question": "where does anna live?", "context": CONTEXT}
    wanted = ask("answers", asked)
    with Client(server.url, server.token) as client:
        assert client.predict("answers", asked)["predictions"] == wanted
        assert client.predict("phrases", "play a song")["predictions"] == ask(
            "phrases", "play a song"
        )
        assert client.predict("shelf", [1, 2])["predictions"] == ask("shelf", [1, 2])
    environment = {
        **os.environ,
        "POCKETSERVE_URL": server.url,
        "POCKETSERVE_TOKEN": server.token or "",
    }
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "predict",
        "answers",
        json.dumps(asked),
        "--json",
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["predictions"] == wanted
    path = tmp_path / "question.json"
    path.write_text(json.dumps(asked))
    curl = [
        "curl",
        "-q",
        "-sS",
        "-H",
        f"Authorization: Bearer {server.token}",
        "-T",
        str(path),
    ]
    done = subprocess.run(
        [*curl, f"{server.url}/predictions/answers"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["predictions"] == wanted


def test_the_models_are_small_and_described() -> None:
    """Each card states a score on unseen data."""
    for file in FOLDER.glob("*/*.tflite"):
        folder = file.parent
        assert file.stat().st_size < MAX_BYTES
        assert "held-out" in (folder / "README.md").read_text(encoding="utf-8")
