"""Engines that start again, folders of servers that were killed, and the log."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gguf_files
from conftest import start_server
from pocketserve.engine.scheduling.cancellation import cancelled
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.llm.client import EngineTimeoutError
from pocketserve.runtimes.llm.process import EngineProcess
from pocketserve.runtimes.llm.session import RUNTIME, LlmSession
from pocketserve.runtimes.llm.settings import CHAT
from pocketserve.state.folder_lock import WorkFolder, sweep_shared
from pocketserve_client import Client
from pocketserve_wire import ApiError

pytestmark = pytest.mark.llm
WAIT_S = 120.0
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[LlmSession]:
    session = RUNTIME.open(ModelSource(gguf_files.write_tiny(tmp_path / "m.gguf")))
    yield session
    session.close()


def kill_engine(session: LlmSession) -> None:
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while session.pid is not None:
        assert time.monotonic() < deadline


def test_a_start_again_ends_with_the_deadline_and_goes_on(
    session: LlmSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_engine(session)
    monkeypatch.setattr(EngineProcess, "_is_loaded", lambda self: False)
    with pytest.raises(EngineTimeoutError, match="loading"):
        session.stream(CHAT, HELLO, time.monotonic() + 0.2)
    loading = session.pid
    assert loading is not None
    monkeypatch.undo()
    with session.stream(CHAT, HELLO, time.monotonic() + WAIT_S) as events:
        assert list(events)
    assert session.pid == loading


def test_a_client_that_leaves_ends_the_wait_for_a_start(
    session: LlmSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        raise cancelled()

    kill_engine(session)
    monkeypatch.setattr(EngineProcess, "_is_loaded", lambda self: False)
    with pytest.raises(ApiError, match="cancelled"):
        session.stream(CHAT, HELLO, time.monotonic() + WAIT_S, leave)


def test_abandoned_folders_are_swept_and_others_kept(tmp_path: Path) -> None:
    prefix = "pocketserve-llm-"
    alive = WorkFolder(tmp_path, prefix)
    abandoned = tmp_path / f"{prefix}0123456789abcdef"
    new = tmp_path / f"{prefix}fedcba9876543210"
    other = tmp_path / "other"
    for folder in (abandoned, new, other):
        folder.mkdir()
        (folder / "e.sock").touch()
    for folder in (alive.path, abandoned, other):
        os.utime(folder, (0, 0))
    sweep_shared(tmp_path, prefix)
    kept = {entry.name for entry in tmp_path.iterdir()}
    assert kept == {alive.path.name, new.name, other.name}
    alive.remove()


def test_requests_are_logged_with_their_model(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    gguf_files.write_tiny(models / "tiny.gguf")
    server = start_server(
        tmp_path, models, "--request-log", "on", "--log-format", "json"
    )
    for url in (server.url, f"socket://127.0.0.1:{server.socket_port}"):
        with Client(url, server.token) as client:
            assert client.chat("tiny", "Hello", max_tokens=2).text()
    assert server.stop() == 0
    models_of_chats = []
    for line in server.log.read_text().splitlines():
        if CHAT in line:
            models_of_chats.append(json.loads(line)["model"])
    assert models_of_chats == ["tiny", "tiny"]
