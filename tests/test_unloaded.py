"""Keep models unloaded after a crash, but not after a clean end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import MODELS, Server, StartServer
from pocketserve.config import load_config
from pocketserve.repository.scan import ModelEntry
from pocketserve.service import Service
from pocketserve.state.unloaded import FOLDER, UnloadedModels
from ports import free_port


def test_an_unload_is_recorded_until_a_clean_end(tmp_path: Path) -> None:
    first = UnloadedModels(tmp_path, MODELS, 8470)
    first.add("petals")
    first.add("digits")
    first.add("digits")
    first.discard("petals")
    first.discard("petals")
    after_a_kill = UnloadedModels(tmp_path, MODELS, 8470)
    assert after_a_kill.names == {"digits"}
    assert UnloadedModels(tmp_path, MODELS, 8480).names == frozenset(), (
        "another server's"
    )
    assert UnloadedModels(tmp_path, MODELS.parent, 8470).names == frozenset(), (
        "of other models"
    )
    after_a_kill.close()
    after_a_kill.add("petals")
    after_a_kill.close()
    assert UnloadedModels(tmp_path, MODELS, 8470).names == frozenset()
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_server_without_a_named_port_records_nothing(tmp_path: Path) -> None:
    unloaded_models = UnloadedModels(tmp_path, MODELS, 0)
    unloaded_models.add("digits")
    unloaded_models.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"names": 4, "models_dir": 4}',
        b"[" * 100_000,
        b'{"models_dir": "x"}',
    ],
)
def test_a_damaged_record_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "8470.json").write_bytes(content)
    assert UnloadedModels(tmp_path, MODELS, 8470).names == frozenset()


def test_a_read_only_folder_only_loses_the_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    unloaded_models = UnloadedModels(tmp_path, MODELS, 8470)
    unloaded_models.add("digits")
    unloaded_models.close()
    assert "will be lost if the server is killed" in caplog.text


class UnloadedMeanwhile(Service):
    """Unloads each model after its load, before the load is recorded."""

    def _load(self, entry: ModelEntry) -> None:
        super()._load(entry)
        self.unload(entry.name)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (Service, set()),
        (UnloadedMeanwhile, {"petals"}),
    ],
)
def test_the_record_agrees_with_the_actual_state(
    tmp_path: Path, kind: type[Service], kept: set[str]
) -> None:
    service = kind(
        load_config(
            {
                "models_dir": MODELS,
                "state_dir": tmp_path,
                "quarantine": False,
            },
            environ={},
        )
    )
    try:
        service.remember(UnloadedModels(tmp_path, MODELS, 8470))
        service.unload("petals")
        assert UnloadedModels(tmp_path, MODELS, 8470).names == {"petals"}
        service.load("petals")
        assert UnloadedModels(tmp_path, MODELS, 8470).names == kept
    finally:
        service.close()


def test_a_failed_start_keeps_the_record(tmp_path: Path) -> None:
    """The supervisor tries again within a second."""
    port = free_port()
    UnloadedModels(tmp_path, MODELS, port).add("petals")
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "serve",
        str(MODELS),
        "--http-port",
        str(port),
        "--no-socket",
    ]
    command += [
        "--state-dir",
        str(tmp_path),
        "--token-file",
        str(tmp_path / "token"),
        "--load",
        "no-such-model",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "--load no-such-model" in done.stderr
    assert UnloadedModels(tmp_path, MODELS, port).names == {"petals"}


def is_served(server: Server, model: str) -> bool:
    answer = server.call(
        "POST",
        f"/predictions/{model}",
        json=[5.1, 3.5, 1.4] if model == "petals" else [0.0] * 10,
    )
    assert answer.status_code == 200 or answer.json()["code"] == "MODEL_NOT_FOUND", (
        answer.text
    )
    return answer.status_code == 200


@pytest.mark.live
def test_a_killed_server_restarts_without_unloaded_models(
    new_server: StartServer, tmp_path: Path
) -> None:
    """This includes models to be loaded at start.

    A clean end deletes the record.
    """
    port = free_port()
    options = (
        "--http-port",
        str(port),
        "--state-dir",
        str(tmp_path / "state"),
        "--load",
        "petals",
    )
    first = new_server(MODELS, *options)
    for model in ("petals", "diabetes"):
        assert (
            first.call("POST", f"/v2/repository/models/{model}/unload").status_code
            == 200
        )
    assert first.call("POST", "/v2/repository/models/diabetes/load").status_code == 200
    first.process.kill()
    first.process.wait(120)
    second = new_server(MODELS, *options)
    assert is_served(second, "petals") is False
    assert is_served(second, "diabetes") is True
    index = {
        entry["name"]: entry
        for entry in second.call("POST", "/v2/repository/index").json()
    }
    assert index["petals"]["reason"] == "unloaded"
    assert "petals stays unloaded" in second.log.read_text()
    assert second.stop() == 0
    third = new_server(MODELS, *options)
    assert is_served(third, "petals")
