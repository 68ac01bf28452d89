"""Model cards of ``GET /v2/models/NAME``, with examples that work unchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS

SEVEN = MODELS / "digits" / "samples" / "7.png"


@pytest.fixture
def card(server: Any) -> dict[str, Any]:
    """Return the card of the digits model."""
    found: dict[str, Any] = server.call("GET", "/v2/models/digits").json()["card"]
    return found


def test_the_contents_of_a_card(card: dict[str, Any], server: Any) -> None:
    """It has the task, labels and a description of the preprocessing."""
    assert card["task"] == "image-classification"
    assert card["labels"] == 10
    assert card["first_labels"] == list("01234")
    assert "8x8 grey" in card["preprocessing"]
    assert "pixel / 255" in card["preprocessing"]
    assert set(card["examples"]) == {"curl", "python", "java"}
    petals = server.call("GET", "/v2/models/petals").json()["card"]
    assert petals["task"] == "tabular-regression"
    assert "first_labels" not in petals


def ready(text: str, server: Any, tmp_path: Path) -> str:
    """Point an example at this server and an existing file."""
    # The name says JPEG, the bytes say PNG: the bytes decide.
    shutil.copy(SEVEN, tmp_path / "photo.jpg")
    return text.replace("127.0.0.1:8470", f"127.0.0.1:{server.port}")


def run(command: list[str], folder: Path, server: Any) -> str:
    """Run an example; return its output."""
    environment = {
        **os.environ,
        "POCKETSERVE_URL": server.url,
        "POCKETSERVE_TOKEN": server.token,
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_curl_example_works(
    card: dict[str, Any], server: Any, tmp_path: Path
) -> None:
    """A shell runs the command.

    The token's command is the package's.
    """
    text = ready(card["examples"]["curl"], server, tmp_path).replace(
        "$(pocketserve token)", server.token
    )
    assert '"label":"7"' in run(["bash", "-c", f"{text} -sS"], tmp_path, server)


def test_the_python_example_works(
    card: dict[str, Any], server: Any, tmp_path: Path
) -> None:
    text = ready(card["examples"]["python"], server, tmp_path)
    assert "'label': '7'" in run([sys.executable, "-c", text], tmp_path, server)
