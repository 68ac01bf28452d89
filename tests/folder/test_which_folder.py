"""Commands that run models themselves use the named, configured or served folder."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, StartServer
from pocketserve.cli.folder.models_folder import find_folder
from pocketserve.config import embedded_models_dir
from pocketserve.state.run_lock import RunLock
from pocketserve.terminal.errors import CommandError
from pocketserve_lab.conversion import model_of

Run = Callable[..., tuple[int, str, str]]
Serve = Callable[[Path], RunLock]


@pytest.fixture(autouse=True)
def state(_no_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a state folder without servers of other tests."""
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a models folder whose model shares no name with an embedded one."""
    (tmp_path / "models" / "mine").mkdir(parents=True)
    for name in ("digits.tflite", "digits.int8.tflite"):
        shutil.copy(MODELS / "digits" / name, tmp_path / "models" / "mine")
    return tmp_path / "models"


@pytest.fixture
def serve(state: Path) -> Iterator[Serve]:
    """Register a folder as served by this process."""
    with ExitStack() as stack:
        numbers = iter(range(1, 10))

        def note(folder: Path) -> RunLock:
            pid = next(numbers)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("os.getpid", lambda: pid)
                lock = RunLock(state, (), models_dir=str(folder))
            stack.callback(lock.close)
            return lock

        yield note


def run_json(command: Run, *arguments: object) -> Any:
    """Run a command that must succeed; return its JSON output."""
    code, out, _ = command(*arguments, "--json")
    assert code == 0
    return json.loads(out)


@pytest.mark.live
def test_commands_use_the_served_folder(
    command: Run, folder: Path, new_server: StartServer, state: Path, tmp_path: Path
) -> None:
    """``bench``, ``compare``, ``convert``, ``inspect`` and ``predict`` find the served
    model.
    """
    code, _, error = command("bench", "mine")
    assert code == 1
    assert f"there is no model 'mine' in {embedded_models_dir()}; there are '" in error

    new_server(folder, environment={"POCKETSERVE_STATE_DIR": str(state)})
    assert run_json(command, "bench", "mine", "--rounds", "1")["version"]
    comparison = run_json(command, "compare", "mine", "--seconds", "0.2")
    assert comparison["folder"] == str(folder / "mine")
    version = min(comparison["versions"])
    options = ("--quantize", "fp16", "--version", version, "--name", "half")
    conversion = run_json(
        command,
        "convert",
        "mine",
        "--to",
        "tflite",
        *options,
    )
    path = Path(conversion["versions"][0]["path"])
    assert path.parent == folder / "mine"
    assert "half" in run_json(command, "inspect", "mine", "--local")["versions"]

    code, _, error = command("bench", "digits")
    assert code == 1
    assert f"there is no model 'digits' in {folder}; there is 'mine'" in error
    assert run_json(
        command,
        "bench",
        "digits",
        "--models-dir",
        MODELS,
        "--rounds",
        "1",
    )


def test_an_option_overrides_the_other_folders(
    folder: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Priority: option, setting, served folder, embedded models."""
    embedded = embedded_models_dir()
    assert find_folder(None) == embedded
    serve(embedded)
    assert find_folder(None) == embedded
    own = serve(folder)
    assert find_folder(None) == folder
    monkeypatch.setenv("POCKETSERVE_MODELS_DIR", str(embedded))
    assert find_folder(None) == embedded
    assert find_folder(str(tmp_path)) == tmp_path
    monkeypatch.delenv("POCKETSERVE_MODELS_DIR")
    serve(tmp_path / "other")
    with pytest.raises(
        CommandError,
        match="several folders are served; name the models folder: --models-dir FOLDER",
    ):
        find_folder(None)
    own.close()
    assert find_folder(None) == tmp_path / "other"


def test_convert_a_model_that_is_served_alone(folder: Path, serve: Serve) -> None:
    """Its converted versions are found in its parent folder."""
    (folder / "mine" / "model.toml").write_text(
        'default_version = "tflite"\n[versions.tflite]\nfile = "digits.tflite"\n'
    )
    serve(folder / "mine")
    options = argparse.Namespace(model="mine", models_dir=None, model_version=None)
    entry, _, config = model_of(options)
    assert entry.folder == folder / "mine"
    assert config.models_dir == folder
