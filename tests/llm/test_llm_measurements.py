"""``compare`` and ``bench`` for language models, on the toy chat model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from folder_files import CHAT_FILE, write_folder
from pocketserve.cli import main

pytestmark = pytest.mark.llm


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one model in two forms."""
    folder = tmp_path_factory.mktemp("models")
    write_folder(folder / "chat")
    shutil.copy(CHAT_FILE, folder / "chat" / "chat.gguf")
    return folder


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))


def result_of(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_compare_measures_both_forms(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("3 plus 4 is 7. The sky is blue. Grass is green.")
    words = ("compare", "chat", "--models-dir", models, "--seconds", "1")
    result = result_of(capsys, *words, "--data", text)
    assert result["reference"] == "gguf"
    file, folder = result["versions"]["gguf"], result["versions"]["transformers"]
    assert file["agreement"] == {"same": 1.0, "start": 1.0}
    assert folder["agreement"]["start"] > 0.5
    for facts in (file, folder):
        for name in ("first_ms", "rate", "prompt_rate", "cpu_s", "load_ms"):
            assert facts[name] >= 0, name
        assert facts["memory_bytes"]["proportional"] > facts["file_bytes"]
    # Two engines read the same weights.
    losses = [facts["perplexity"]["bits_per_byte"] for facts in (file, folder)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert file["perplexity"]["tokens"] > 10


def test_bench_measures_all_ways(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("bench", "chat", "--models-dir", models, "--seconds", "1", "--rounds", "3")
    result = result_of(capsys, *words)
    assert set(result["ways"]) == {"engine", "socket", "http"}
    for figures in result["ways"].values():
        assert len(figures["samples"]) == 3
    assert main([*map(str, words), "--version", "transformers"]) == 1
    assert "pocketserve compare chat" in capsys.readouterr().err
