"""Sample inputs of models: what is listed and sent, and what never is."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import MODELS, StartServer
from places import copy_folder
from pocketserve.repository import samples
from pocketserve.repository.samples import read_sample
from pocketserve.repository.scan import Models

SAMPLES = "/v2/models/petals/samples/"
UNLISTED = (
    "link.txt",
    "page.html",
    "folder.txt",
    "large.txt",
    "nothing.txt",
    "..%2Fmodel.toml",
    "..%2f..%2fsecret.txt",
    "%00",
    "row.json%00",
    "a" * 300,
)


def write_models(models: Path) -> None:
    """Write petals with files that must stay private, and two models without samples."""
    copy_folder(MODELS / "petals", models / "petals")
    folder = models / "petals" / "samples"
    secret = models / "secret.txt"
    secret.write_text("secret")
    (folder / "link.txt").symlink_to(secret)
    (folder / "page.html").write_text("<b>")
    (folder / "folder.txt").mkdir()
    (folder / "large.txt").write_bytes(bytes((4 << 20) + 1))
    (folder / "notes.txt").write_text("Ναι", "utf-8")

    model = folder.parent / "petals.tflite"
    (models / "bare.tflite").write_bytes(model.read_bytes())
    copy_folder(MODELS / "petals", models / "linked")
    linked = models / "linked" / "samples"
    (linked / "row.json").unlink()
    linked.rmdir()
    linked.symlink_to(folder)


def test_only_listed_samples_are_sent(new_server: StartServer, tmp_path: Path) -> None:
    """Links, folders, large files and other types stay private."""
    models = tmp_path / "models"
    write_models(models)
    server = new_server(models)

    card = server.call("GET", "/v2/models/petals").json()["card"]
    assert card["samples"] == ["notes.txt", "row.json"]
    row = server.call("GET", SAMPLES + "row.json")
    assert row.json() == [5.1, 3.5, 1.4]
    assert row.headers["Content-Type"] == "application/json"
    notes = server.call("GET", SAMPLES + "notes.txt")
    assert notes.content.decode() == "Ναι"
    for name in ("bare", "linked"):
        model = server.call("GET", f"/v2/models/{name}").json()
        assert "samples" not in model["card"]
    for name in UNLISTED:
        refused = server.call("GET", SAMPLES + name)
        assert refused.status_code == 404, name
        assert "secret" not in refused.text
    missing = server.call("GET", "/v2/models/nothing/samples/row.json")
    assert missing.json()["code"] == "MODEL_NOT_FOUND"


def test_a_folder_that_becomes_a_link_sends_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between the list of names and the file, the folder is swapped for a link."""
    models = tmp_path / "models"
    copy_folder(MODELS / "petals", models / "petals")
    folder = models / "petals" / "samples"
    private = tmp_path / "private"
    private.mkdir()
    (private / "row.json").write_text("secret")
    entry = Models(models)["petals"]
    names_in = samples._names_in

    def swap(descriptor: int) -> list[str]:
        names = names_in(descriptor)
        folder.rename(tmp_path / "away")
        folder.symlink_to(private)
        return names

    monkeypatch.setattr(samples, "_names_in", swap)
    content = read_sample(entry, "row.json")
    assert content is not None
    assert b"secret" not in content
    monkeypatch.undo()
    assert read_sample(entry, "row.json") is None
