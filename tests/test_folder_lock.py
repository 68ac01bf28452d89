"""Let processes change state files one at a time, without waiting forever."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pocketserve.quarantine.verdicts import Verdict, VerdictStore
from pocketserve.state import folder_lock
from pocketserve.state.folder_lock import locked

TIMEOUT_S = 120.0


def test_a_folder_is_locked_by_one_at_a_time(tmp_path: Path) -> None:
    """Another folder has another lock."""
    folder = tmp_path / "new"
    with (
        locked(folder) as first,
        locked(folder, 0) as second,
        locked(tmp_path, 0) as other,
    ):
        assert first is True
        assert second is False
        assert other is True
    with locked(folder, 0) as third:
        assert third
    assert list(folder.iterdir()) == []


def test_a_read_only_folder_has_no_lock(tmp_path: Path) -> None:
    """The code that writes the file reports the error."""
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "file") as held:
        assert not held


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    """The kernel releases the locks of a process."""
    code = "import os, pathlib, sys; from pocketserve.state.folder_lock import locked\n"
    code += "with locked(pathlib.Path(sys.argv[1])) as held: os._exit(int(held))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], timeout=TIMEOUT_S, check=False
        ).returncode
        == 1
    )
    with locked(tmp_path, 0) as held:
        assert held


def _judge(path: Path, number: int) -> None:
    VerdictStore(path).save(str(number), Verdict(True))


def test_no_concurrent_change_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two dozen threads read, change and write the same file."""
    acquire = folder_lock.acquire_lock
    monkeypatch.setattr(
        folder_lock,
        "acquire_lock",
        lambda descriptor, deadline: acquire(descriptor, deadline + TIMEOUT_S),
    )
    path = tmp_path / "state.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: _judge(path, number), range(1, 25)))
    assert len(json.loads(path.read_text())) == 24
