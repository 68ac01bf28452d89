"""Tests of ``pocketserve remove`` and ``rename``, beside a running server too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import MODELS, STATE, StartServer
from pocketserve.repository.scan import scan

DIGITS = MODELS / "digits"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _own_state(_no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(STATE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with bare files, a manifest, undeclared versions and a numbered
    model.
    """
    folder = tmp_path / "models"
    for name in ("own", "plain", "numbers/1", "numbers/2"):
        (folder / name).mkdir(parents=True)
    for path in (
        folder / "bare.tflite",
        *(folder / f"numbers/{number}/m.tflite" for number in (1, 2)),
    ):
        shutil.copy(DIGITS / "digits.tflite", path)
    shutil.copy(DIGITS / "digits.onnx", folder / "bare.onnx")
    for name in ("digits.tflite", "digits.int8.tflite", "labels.txt"):
        shutil.copy(DIGITS / name, folder / "own")
        shutil.copy(DIGITS / name, folder / "plain")
    (folder / "own" / "model.toml").write_text(
        '# mine\ntask = "image-classification"\nlabels = "labels.txt"\ndefault_version = "small"\n\n'
        '[versions.full]\nfile = "digits.tflite"\n\n[versions.small]\nfile = "digits.int8.tflite"  # int8\n'
    )
    return folder


@pytest.fixture
def run(command: Run, folder: Path) -> Run:
    """Run a command on the folder.

    Return its exit code and output.
    """
    return lambda *words: command(*words, "--models-dir", folder)


def names(folder: Path) -> dict[str, list[str]]:
    """Return the models of a folder with their versions."""
    return {name: list(entry.versions) for name, entry in scan(folder).items()}


def test_remove_a_model(run: Run, folder: Path) -> None:
    """Its own files go, including hidden folders; all other files stay."""
    code, out, err = run("remove", "own", "--yes")
    assert (code, err) == (0, "")
    assert f"own in {folder}: 4 files, " in out.replace("\n", " ")
    assert out.endswith("Removed own.\n")
    assert run("remove", "bare", "--yes")[0] == 0
    assert sorted(os.listdir(folder)) == ["numbers", "plain"]


def test_remove_a_version(run: Run, folder: Path) -> None:
    """The manifest drops it and keeps its comments.

    A new default version is printed.
    """
    code, out, _ = run("remove", "own", "--version", "small", "--yes")
    assert code == 0
    assert "The default version is now full." in out
    assert (folder / "own" / "model.toml").read_text() == (
        '# mine\ntask = "image-classification"\nlabels = "labels.txt"\n\n[versions.full]\nfile = "digits.tflite"\n\n'
    )
    assert sorted(os.listdir(folder / "own")) == [
        "digits.tflite",
        "labels.txt",
        "model.toml",
    ]
    assert (
        "pocketserve remove own"
        in run("remove", "own", "--version", "full", "--yes")[2]
    )
    assert run("remove", "bare", "--version", "onnx", "--yes")[0] == 0
    assert run("remove", "numbers", "--version", "2", "--yes")[0] == 0
    assert os.listdir(folder / "numbers") == ["1"]
    out = run("remove", "plain", "--version", "tflite", "--yes")[1]
    assert "Its versions are called tflite now, after their files." in out
    assert names(folder) == {
        "bare": ["tflite"],
        "numbers": ["1"],
        "own": ["full"],
        "plain": ["tflite"],
    }


def test_remove_a_version_that_is_a_folder(run: Run, folder: Path) -> None:
    """A version's folder goes as a whole.

    A folder among other files is left to its owner.
    """
    shutil.copytree(DIGITS / "savedmodel", folder / "own" / "saved")
    with (folder / "own" / "model.toml").open("a") as file:
        file.write('[versions.saved]\nfile = "saved"\n')
    assert run("remove", "own", "--version", "saved", "--yes")[0] == 0
    assert sorted(os.listdir(folder / "own")) == [
        "digits.int8.tflite",
        "digits.tflite",
        "labels.txt",
        "model.toml",
    ]
    shutil.copy(DIGITS / "savedmodel" / "saved_model.pb", folder / "own")
    with (folder / "own" / "model.toml").open("a") as file:
        file.write('[versions.all]\nfile = "."\n')
    assert "delete them by hand" in run("remove", "own", "--version", "all", "--yes")[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["remove", "own"],
            "there is no terminal to ask on; add --yes to delete these files",
        ),
        (["remove", "owm", "--yes"], "there is no model 'owm' in"),
        (["remove", "../outside", "--yes"], "name the model, not a path"),
        (["remove", "linked", "--yes"], "leads out of"),
        (
            ["remove", "own", "--version", "smal", "--yes"],
            "own has no version 'smal'; did you mean 'small'?",
        ),
        (
            ["remove", "packed", "--yes"],
            "packed is not a model (packed.zip is an archive",
        ),
        (
            ["rename", "packed", "other"],
            "packed is not a model (packed.zip is an archive",
        ),
        (["rename", "own", "plain"], "has a model 'plain' already"),
        (["rename", "own", "../plain"], "a model cannot be called '../plain'"),
        (["rename", "linked", "other"], "leads out of"),
        (["rename", "no", "other"], "there is no model 'no'"),
    ],
)
def test_rejected_commands_change_nothing(
    run: Run, folder: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    """Nothing changes inside or outside the folder."""
    outside = tmp_path / "outside"
    shutil.copytree(folder / "own", outside)
    (folder / "linked").symlink_to(outside)
    (folder / "packed.zip").write_bytes(b"x")
    before = sorted(map(str, tmp_path.rglob("*")))
    code, out, err = run(*words)
    assert code == 1
    assert sentence in err
    assert "Removed" not in out
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_rename_a_model(run: Run, folder: Path) -> None:
    """Works for folders and bare files, and versions keep their names."""
    assert run("rename", "own", "mine") == (0, "own is called mine now.\n", "")
    (folder / "plain" / "task.py").write_text("raise SystemExit")
    assert (
        f"needs your consent: pocketserve trust {folder / 'coded'}\n"
        in run("rename", "plain", "coded")[1]
    )
    assert run("rename", "bare", "two")[0] == 0
    assert names(folder) == {
        **{"mine": ["full", "small"], "numbers": ["1", "2"]},
        **{"coded": ["tflite-int8", "tflite"], "two": ["onnx", "tflite"]},
    }


@pytest.mark.live
def test_a_running_server_notices_changes(
    run: Run, folder: Path, tmp_path: Path, new_server: StartServer
) -> None:
    """The next request uses the change.

    After a removal another version answers.
    """
    server = new_server(folder)
    picture = (DIGITS / "samples" / "3.png").read_bytes()

    def ask(name: str) -> int:
        return server.call("POST", f"/predictions/{name}", data=picture).status_code

    assert [ask("own"), ask("fresh")] == [200, 404]
    source = tmp_path / "fresh"
    shutil.copytree(folder / "own", source)
    assert run("add", str(source))[0] == 0
    assert [ask("own"), ask("fresh")] == [200, 200]
    assert run("rename", "own", "old")[0] == 0
    assert [ask("own"), ask("old")] == [404, 200]
    assert run("remove", "old", "--version", "small", "--yes")[0] == 0
    assert ask("old") == 200
    assert run("remove", "old", "--yes")[0] == 0
    assert [ask("old"), ask("fresh")] == [404, 200]
