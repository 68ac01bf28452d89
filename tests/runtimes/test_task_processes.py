"""Sessions of Hugging Face folders, with a small program in place of the network's."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import TensorPayload
from pocketserve.runtimes.hugging_face import task_process
from pocketserve.runtimes.hugging_face.task_process import (
    NetworkEndedError,
    NetworkSettings,
)
from pocketserve.runtimes.hugging_face.task_session import TaskFolderSession
from pocketserve.runtimes.llm.session import MAX_DEATHS
from pocketserve_wire import ApiError, ErrorCode

INPUTS = {"x": np.zeros((1, 1), np.float32)}
ENTRY = {
    "name": "x",
    "dtype": "FP32",
    "shape": [-1, 1],
}
DESCRIPTION = {"inputs": [ENTRY], "outputs": [ENTRY]}
PROGRAM = """
import os, pathlib, struct, sys
text = sys.argv[1].encode()
pathlib.Path(sys.argv[3]).write_text(str(os.getpid()))
if text:
    sys.stdout.buffer.write(struct.pack("<II", len(text), 0) + text)
    sys.stdout.buffer.flush()
sys.stdin.buffer.read(8)
os.kill(os.getpid(), int(sys.argv[2]))
"""
ABORT, KILL = 6, 9


class Folder:
    """A folder whose process describes itself, and ends at the first request.

    Attributes:
        description: None never gets loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description: Any = DESCRIPTION
        self.signal = ABORT

    @property
    def pid(self) -> int:
        """The number of the last process."""
        return int((self.path / "pid").read_text())

    def command(self, *_: object) -> list[str]:
        text = json.dumps(self.description) if self.description else ""
        end = str(int(self.signal))
        return [sys.executable, "-c", PROGRAM, text, end, str(self.path / "pid")]

    def open(self) -> TaskFolderSession:
        return TaskFolderSession(NetworkSettings(self.path, 1, 0, 0), "m")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    folder = Folder(tmp_path)
    monkeypatch.setattr(task_process, "_command", folder.command)
    return folder


@pytest.fixture
def session(folder: Folder) -> Iterator[TaskFolderSession]:
    session = folder.open()
    yield session
    session.close()


def test_a_process_that_dies_again_and_again_stays_away(
    session: TaskFolderSession,
) -> None:
    for _ in range(MAX_DEATHS):
        with pytest.raises(NetworkEndedError, match="SIGABRT") as caught:
            session.run(INPUTS)
        assert not caught.value.by_system
    with pytest.raises(NetworkEndedError, match="load the model again"):
        session.run(INPUTS)
    assert session.pid is None


def test_ends_by_the_system_do_not_count(
    folder: Folder, session: TaskFolderSession
) -> None:
    folder.signal = KILL
    with pytest.raises(NetworkEndedError, match="SIGABRT"):
        session.run(INPUTS)
    for _ in range(MAX_DEATHS + 1):
        with pytest.raises(NetworkEndedError, match="SIGKILL") as caught:
            session.run(INPUTS)
        assert caught.value.by_system


def test_a_request_gives_up_a_restart_that_goes_on(
    folder: Folder, session: TaskFolderSession
) -> None:
    def leave() -> None:
        raise ApiError(ErrorCode.CANCELLED, "the client left")

    with pytest.raises(NetworkEndedError):
        session.run(INPUTS)
    folder.description = None
    with pytest.raises(ApiError, match="the client left"):
        session.ensure_running(leave)
    started = session.pid
    with pytest.raises(ApiError, match="the client left"):
        session.ensure_running(leave)
    assert session.pid == started is not None


def call_until(deadline: float) -> InferenceCall:
    payload = TensorPayload(Mock())
    call = InferenceCall("m", None, payload, RequestOptions(deadline))
    call._operation = Mock()
    return call


def test_a_call_stops_waiting_for_a_restart_at_its_deadline(
    folder: Folder, session: TaskFolderSession
) -> None:
    with pytest.raises(NetworkEndedError):
        session.run(INPUTS)
    folder.description = None
    with pytest.raises(ApiError) as caught:
        call_until(time.monotonic() - 1).work(session)
    assert caught.value.code == ErrorCode.DEADLINE_EXCEEDED
    assert session.pid is not None


def test_a_call_reports_a_process_that_stays_away(session: TaskFolderSession) -> None:
    for _ in range(MAX_DEATHS):
        with pytest.raises(NetworkEndedError):
            session.run(INPUTS)
    with pytest.raises(ApiError, match="load the model again") as caught:
        call_until(time.monotonic() + 600).work(session)
    assert caught.value.code == ErrorCode.INFERENCE_FAILED


def test_a_damaged_description_leaves_no_process(folder: Folder) -> None:
    folder.description = {"inputs": [{}], "outputs": []}
    with pytest.raises(KeyError):
        folder.open()
    with pytest.raises(ProcessLookupError):
        os.kill(folder.pid, 0)
