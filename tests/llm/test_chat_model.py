"""Check that the toy chat model does what its card promises."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, Server, start_server
from pocketserve_client import Client

pytestmark = pytest.mark.llm
FOLDER = ROOT / "tests" / "models" / "chat"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    models = tmp_path_factory.mktemp("models")
    shutil.copytree(FOLDER, models / "chat")
    server: Server = start_server(tmp_path_factory.mktemp("server"), models)
    with Client(server.url, server.token) as client:
        yield client
    assert server.stop() == 0


def answer(client: Client, *turns: str) -> str:
    messages = []
    for number, text in enumerate(turns):
        role = "assistant" if number % 2 else "user"
        messages.append({"role": role, "content": text})
    return client.chat("chat", messages, temperature=0).text()


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What colour is the sky?", "The sky is blue."),
        ("How many days has a week?", "A week has seven days."),
        ("Hello!", "Hello! How can I help?"),
        ("What is 3 plus 4?", "3 plus 4 is 7."),
        ("17 + 16 = ?", "17 plus 16 is 33."),
        ("Spell moon.", "m, o, o, n."),
    ],
)
def test_it_answers_learned_questions(
    client: Client, question: str, expected: str
) -> None:
    assert answer(client, question) == expected


def test_it_remembers_the_chat(client: Client) -> None:
    turns = ("My name is Vera.", "Hello, Vera!", "What is my name?")
    assert answer(client, *turns) == "Your name is Vera."


def test_it_writes_json(client: Client) -> None:
    text = answer(client, "Give the sum of 5 and 6 as JSON.")
    assert json.loads(text) == {"sum": 11}


def test_the_demo_shows_its_answer() -> None:
    command = [sys.executable, "-m", "pocketserve", "demo"]
    output = subprocess.check_output(command, text=True, timeout=300)
    assert "chat: Tell me a story about a fox.\nOnce there was a" in output


def test_it_stops_by_itself(client: Client) -> None:
    with client.chat("chat", "Tell me a story about a fox.", temperature=0) as stream:
        text = stream.text()
    assert text.startswith("Once there was a")
    assert stream.finish_reason == "stop"


def test_a_stop_text_is_left_out(client: Client) -> None:
    stream = client.chat("chat", "Spell moon.", temperature=0, stop=[", n"])
    assert stream.text() == "m, o, o"
    assert stream.finish_reason == "stop"


def test_metadata_names_file_and_size(client: Client) -> None:
    metadata = client.model_metadata("chat")
    assert metadata["parameters"]["task"] == "text-generation"
    assert metadata["platform"] == "llama_cpp"


def test_the_card_is_beside_the_file() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "Apache-2.0" in card
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000
    assert Path(FOLDER / "model.toml").exists()
