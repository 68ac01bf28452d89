"""Report guessed defaults in answers, and replace outdated advice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from colour_models import colour_model, plain_picture
from conftest import StartServer
from pocketserve_client import Client, ServerError

pytest.importorskip("onnx", reason="makes the models")
pytest.importorskip("PIL.Image", reason="pictures need Pillow")

pytestmark = [pytest.mark.live, pytest.mark.onnx]

LABELS = "red\ngreen\nblue\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a models folder: one model with labels, one of an uncertain kind."""
    folder = tmp_path / "models"
    colour_model(folder / "guessed" / "guessed.onnx")
    (folder / "guessed" / "labels.txt").write_text(LABELS)
    colour_model(folder / "plain" / "plain.onnx")
    return folder


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_guessed_defaults_are_in_the_answer(
    new_server: StartServer, folder: Path, transport: str
) -> None:
    server = new_server(folder)
    url = (
        server.url
        if transport == "http"
        else f"socket://127.0.0.1:{server.socket_port}"
    )
    with Client(url, server.token) as client:
        guessed = client.predict("guessed", plain_picture())
        (folder / "guessed" / "model.toml").write_text(
            "[image]\nmean = 127.5\nstd = 127.5\n"
        )
        client.load("guessed")
        stated = client.predict("guessed", plain_picture())
        metadata = client.model_metadata("guessed")

    assert guessed["assumed"] == ["pixels 0..1", "colours RGB", "resize stretch"]
    assert guessed["predictions"][0]["label"] == "red"
    assert "assumed" not in stated
    assert "assumed" not in metadata.get("metadata", {})


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_followed_advice_is_not_repeated(
    new_server: StartServer, folder: Path, transport: str
) -> None:
    server = new_server(folder)
    url = (
        server.url
        if transport == "http"
        else f"socket://127.0.0.1:{server.socket_port}"
    )
    with Client(url, server.token) as client:
        with pytest.raises(ServerError, match='write task = "image-classification"'):
            client.predict("plain", plain_picture())
        path = folder / "plain" / "model.toml"
        path.write_text('task = "object-detection"\n')
        with pytest.raises(ServerError, match="failed to load"):
            client.load("plain")
        with pytest.raises(
            ServerError,
            match=r"model\.toml has a fault: .*; the old one is still served",
        ) as caught:
            client.predict("plain", plain_picture())
        assert "write task" not in str(caught.value)
        assert str(caught.value).count("model.toml") == 1
        path.write_text('task = "image-classification"\n')
        os.utime(path, ns=(1, 1))
        client.load("plain")
        answer = client.predict("plain", plain_picture())

    assert answer["task"] == "image-classification"
