"""Model cards: what ``GET /v2/models/NAME`` says for people, and requests that work as they stand."""

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
    """The card of the digits model."""
    found: dict[str, Any] = server.call("GET", "/v2/models/digits").json()["card"]
    return found


def test_what_it_says(card: dict[str, Any], server: Any) -> None:
    """Task, labels, preprocessing in words."""
    assert (card["task"], card["labels"], card["first_labels"]) == (
        "image-classification",
        10,
        list("01234"),
    )
    assert (
        "8x8 grey" in card["preprocessing"] and "pixel / 255" in card["preprocessing"]
    )
    assert set(card["examples"]) == {"curl", "python", "java"}
    petals = server.call("GET", "/v2/models/petals").json()["card"]
    assert petals["task"] == "tabular-regression" and "first_labels" not in petals


def ready(text: str, server: Any, tmp_path: Path) -> str:
    """An example on this server, with a file that is there."""
    shutil.copy(
        SEVEN, tmp_path / "photo.jpg"
    )  # the name says JPEG, the bytes say PNG: the bytes count
    return text.replace("127.0.0.1:8470", f"127.0.0.1:{server.port}")


def run(command: list[str], folder: Path, server: Any) -> str:
    """What an example prints."""
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


def test_curl(card: dict[str, Any], server: Any, tmp_path: Path) -> None:
    """The command as a shell runs it; the token's command is that of the package."""
    text = ready(card["examples"]["curl"], server, tmp_path).replace(
        "$(pocketserve token)", server.token
    )
    assert '"label":"7"' in run(["bash", "-c", f"{text} -sS"], tmp_path, server)


def test_python(card: dict[str, Any], server: Any, tmp_path: Path) -> None:
    """The program as it stands."""
    text = ready(card["examples"]["python"], server, tmp_path)
    assert "'label': '7'" in run([sys.executable, "-c", text], tmp_path, server)
