"""Tests of ``pocketserve status`` and ``stop``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import MODELS, Server, StartServer
from pocketserve.cli import main
from pocketserve.cli.running import status as module
from pocketserve.cli.running.status import _duration
from pocketserve.doctor.device import Device
from pocketserve.doctor.settings import read_settings


@pytest.fixture
def own(
    new_server: StartServer,
    models_copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Server:
    """Start a server that commands of this process find."""
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("POCKETSERVE_URL", raising=False)
    return new_server(
        models_copy, environment={"POCKETSERVE_STATE_DIR": str(tmp_path / "state")}
    )


def connection(server: Server, transport: str = "http") -> list[str]:
    url = (
        server.url
        if transport == "http"
        else f"socket://127.0.0.1:{server.socket_port}"
    )
    return ["--url", url, "--token-file", str(server.log.with_name("token"))]


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_status_shows_running_servers(
    own, models_copy, capsys, monkeypatch, transport
) -> None:
    monkeypatch.setenv("COLUMNS", "45")
    path = "/predictions/petals"
    assert own.call("POST", path, data=b"[5.1, 3.5, 1.4]").status_code == 200
    assert own.call("POST", path, data=b"[5.1]").status_code == 400
    assert main(["status", *connection(own, transport)]) == 0
    printed = capsys.readouterr().out
    first_block = printed.split("\n\n")[0]
    facts = dict(line.split(maxsplit=1) for line in first_block.splitlines())
    assert facts["address"] == own.url
    assert facts["process"] == str(own.process.pid)
    assert facts["folder"] == str(models_copy)
    assert facts["requests"] == "1 answered, 1 rejected or failed"
    assert facts["power"] == "full"
    last_line = printed.splitlines()[-1]
    assert last_line.split()[:2] == ["petals", "tflite"]

    assert main(["ps", "--json", *connection(own, transport)]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["answered"] == 1
    assert status["failed"] == 1
    assert [row["name"] for row in status["loaded"]] == ["petals"]
    assert status["uptime_s"] >= 0


def test_status_finds_the_only_running_server(own, capsys, monkeypatch) -> None:
    monkeypatch.delenv("POCKETSERVE_URL", raising=False)
    assert main(["status", "--json", *connection(own)[2:]]) == 0
    assert json.loads(capsys.readouterr().out)["pid"] == own.process.pid


def test_watching_continues_until_interrupted(own, capsys, monkeypatch) -> None:
    rounds = []

    def pause(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", pause)
    assert main(["status", "--watch", *connection(own)]) == 0
    assert capsys.readouterr().out.count("No model is loaded") == 3


def test_stop_ends_the_server(own, capsys) -> None:
    assert main(["stop"]) == 0
    assert (
        capsys.readouterr().out
        == f"The server at {own.url} (process {own.process.pid}) has ended.\n"
    )
    assert own.process.wait(120) == 0
    assert main(["stop"]) == 1
    message = capsys.readouterr().err
    assert "no server with the state folder " in message
    assert "start one by `pocketserve serve`" in message


def test_stop_asks_for_one_of_several_servers(
    own, new_server, models_copy, tmp_path, capsys
) -> None:
    other = new_server(
        models_copy, environment={"POCKETSERVE_STATE_DIR": str(tmp_path / "state")}
    )
    assert main(["stop"]) == 1
    assert "2 servers run: " in (said := capsys.readouterr().err)
    assert own.url in said
    assert "--url" in said
    for url in (
        "http://127.0.0.1:1",
        "http://10.0.0.1:" + str(own.port),
        "http://127.0.0.1:x",
    ):
        assert main(["stop", "--url", url]) == 1
    assert main(["stop", "--url", f"socket://localhost:{other.socket_port}"]) == 0
    assert other.process.wait(120) == 0
    assert own.process.poll() is None


def test_the_doctor_checks_the_served_folder(own, models_copy) -> None:
    config = read_settings(Device()).config
    assert config is not None
    assert config.models_dir == models_copy
    named = read_settings(Device(), str(MODELS)).config
    assert named is not None
    assert named.models_dir == MODELS
    own.stop()
    after = read_settings(Device()).config
    assert after is not None
    assert after.models_dir != models_copy


def test_times_have_two_units() -> None:
    assert [_duration(seconds) for seconds in (0, 59, 61, 3 * 3600 + 61, 90_000)] == [
        *("0 s", "59 s", "1 min 1 s", "3 h 1 min", "1 d 1 h")
    ]
