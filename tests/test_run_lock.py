"""Report a killed server once at the next start, and for a while in the doctor."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import MODELS
from pocketserve.state.run_lock import (
    RunLock,
    boot_id,
    killed,
    notice_killed,
    running_servers,
)

ENDLESS = '{"pid": Infinity, "started": 1, "suspended": null, "boot": "", "ports": []}'
NEVER = '{"pid": 7, "started": 1e300, "suspended": null, "boot": "", "ports": []}'
START = "from pocketserve.state.run_lock import RunLock; from pathlib import Path; import os, sys;"


def start_and_die(state) -> int:
    """Kill a process that has marked its run; return its id."""
    code = f"{START} RunLock(Path(sys.argv[1]), (8470,)); os.kill(os.getpid(), 9)"
    process = subprocess.Popen([sys.executable, "-c", code, str(state)])
    assert process.wait(60) == -9
    return process.pid


def test_a_clean_end_leaves_nothing(tmp_path):
    marker = RunLock(tmp_path, (1, 2))
    (run,) = running_servers(tmp_path)
    assert (run.pid, run.ports) == (os.getpid(), (1, 2))
    assert killed(tmp_path) is None
    assert notice_killed(tmp_path) is None
    marker.close()
    marker.close()
    assert running_servers(tmp_path) == []
    assert killed(tmp_path) is None


def test_a_killed_run_is_reported_once_and_remembered(tmp_path):
    pid = start_and_die(tmp_path)
    assert running_servers(tmp_path) == []
    found = killed(tmp_path)
    assert found is not None
    assert found.pid == pid
    assert notice_killed(tmp_path) == found
    assert notice_killed(tmp_path) is None
    assert killed(tmp_path) == found


def test_a_running_server_with_the_same_folder_is_left_alone(tmp_path):
    marker = RunLock(tmp_path, ())
    dead = start_and_die(tmp_path)
    noticed = notice_killed(tmp_path)
    assert noticed is not None
    assert noticed.pid == dead
    assert [run.pid for run in running_servers(tmp_path)] == [os.getpid()]
    marker.close()


def test_concurrent_checks_do_not_mistake_each_other_for_the_server(tmp_path):
    """The doctor's checks try the lock for a moment."""
    tried = threading.Event()
    release = threading.Event()
    flock = fcntl.flock

    def slow_flock(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        tried.set()
        assert release.wait(120)

    dead = start_and_die(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pocketserve.state.run_lock.fcntl.flock", slow_flock)
            first = pool.submit(killed, tmp_path)
            assert tried.wait(120)
        second = killed(tmp_path)
        release.set()
        assert second is not None
        assert second.pid == dead
        assert first.result(120) == second


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"pid": "x"}',
        "\0" * 100,
        "[" * 4000,
        ENDLESS,
        NEVER,
    ],
)
def test_damaged_files_are_ignored(tmp_path, content):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "7.json").write_text(content)
    (tmp_path / "last-killed.json").write_text(content)
    assert killed(tmp_path) is None
    assert running_servers(tmp_path) == []
    assert notice_killed(tmp_path) is None


def test_a_read_only_folder_is_not_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    RunLock(tmp_path / "file", ()).close()
    assert running_servers(tmp_path / "file") == []
    assert boot_id(tmp_path / "none") == ""


UNREADABLE_STATE = """
import os, sys
from pathlib import Path
from pocketserve.state.run_lock import killed, notice_killed, running_servers
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
state = Path(sys.argv[1])
assert (running_servers(state), killed(state), notice_killed(state)) == ([], None, None)
"""


def test_an_unreadable_folder_reports_no_server(tmp_path):
    """A start checks for killed servers.

    A separate process drops root's privileges.
    """
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0)
    for state in (closed, tmp_path / ("x" * 300)):
        done = subprocess.run(
            [sys.executable, "-c", UNREADABLE_STATE, str(state)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.live
def test_a_server_reports_its_killed_predecessor(new_server, tmp_path):
    own = {"POCKETSERVE_STATE_DIR": str(tmp_path / "state")}
    first = new_server(MODELS, environment=own)
    (run,) = running_servers(tmp_path / "state")
    assert run.pid == first.process.pid
    assert first.port in run.ports
    first.process.kill()
    first.process.wait(120)
    second = new_server(MODELS, environment=own)
    said = second.log.read_text()
    assert (
        f"(process {first.process.pid}) was killed; what helps: pocketserve serve --memory-budget"
        in said
    )
    assert second.stop() == 0
    assert (
        json.loads((tmp_path / "state/last-killed.json").read_text())["pid"]
        == first.process.pid
    )
    assert list((tmp_path / "state/runs").iterdir()) == []
    third = new_server(MODELS, environment=own)
    assert "was killed" not in third.log.read_text()


@pytest.mark.live
def test_a_start_in_termux_recommends_the_wake_lock(new_server, tmp_path):
    own = {
        "POCKETSERVE_STATE_DIR": str(tmp_path / "state"),
        "PREFIX": "/data/data/com.termux/files/usr",
    }
    pid = start_and_die(tmp_path / "state")
    server = new_server(MODELS, environment=own)
    said = server.log.read_text()
    assert (
        f"(process {pid}) was killed, most likely by Android; what helps: termux-wake-lock"
        in said
    )
    assert server.stop() == 0
