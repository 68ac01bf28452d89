"""Test child processes: limits, exit and cleanup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pocketserve.child.log import KEPT_BYTES, MAX_BYTES, ChildLog
from pocketserve.child.memory import resident_bytes
from pocketserve.child.process import (
    Child,
    Exceeded,
    Limits,
    Streams,
    describe_end,
    running,
)

LIMITS = Limits(120)
SLEEP = ["sleep", "600"]
NESTED = """
import os, subprocess, sys
command = ["sh", "-c", "echo started; while :; do sleep 600; done"]
inner = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
inner.stdout.readline()
print(os.getsid(0), inner.pid, flush=True)
inner.wait()
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def has_ended(pid: int) -> bool:
    """Return whether a process is gone or a zombie."""
    try:
        return "(sleep) Z" in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_a_child_that_ends_has_exceeded_nothing() -> None:
    with running(python("raise SystemExit(3)")) as child:
        assert child.wait(LIMITS) is None
        assert child.process.returncode == 3
        assert not child.is_running


def test_the_time_limit_is_enforced() -> None:
    with running(SLEEP) as child:
        assert child.wait(Limits(0.0, poll_s=0.01)) is Exceeded.TIME
        assert child.is_running
    assert child.process.returncode == -signal.SIGKILL


def test_the_memory_limit_is_enforced() -> None:
    """It covers the process alone, or its descendants as well."""
    streams = Streams(stdout=subprocess.PIPE)
    with running(python(NESTED), streams) as child:
        assert child.process.stdout is not None
        child.process.stdout.readline()
        own = resident_bytes(child.pid, descendants=False)
        assert 0 < own < resident_bytes(child.pid)
        limits = Limits(120, own // 2, with_descendants=False, poll_s=0.01)
        assert child.wait(limits) is Exceeded.MEMORY


def test_ticks_come_while_it_runs() -> None:
    ticks = []
    with running(python("input()"), Streams(stdin=subprocess.PIPE)) as child:

        def tick() -> None:
            ticks.append(child.is_running)
            if len(ticks) == 3:
                child.process.stdin.close()

        assert child.wait(Limits(120, poll_s=0.01), tick) is None
    assert ticks[:3] == [True] * 3


def test_all_descendants_are_killed() -> None:
    """This includes one in a session of its own."""
    with running(python(NESTED), Streams(stdout=subprocess.PIPE)) as child:
        assert child.process.stdout is not None
        session, inner = map(int, child.process.stdout.readline().split())
        assert session == child.pid != os.getsid(0)
        assert not has_ended(inner)
    # The system ends it a moment after the signal.
    deadline = time.monotonic() + 60.0
    while not has_ended(inner):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert child.process.stdout.closed


def test_a_child_may_exit_first() -> None:
    code = (
        "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); "
        "print(1, flush=True); signal.sigwait([15]); sys.exit(4)"
    )
    child = Child(python(code), Streams(stdout=subprocess.PIPE))
    assert child.process.stdout is not None
    child.process.stdout.readline()
    assert child.end(grace_s=120.0) == 4
    assert child.end(grace_s=120.0) == 4


def test_the_session_of_an_ended_child_is_killed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process may get its id afterwards."""
    killed: list[int] = []
    kill = os.killpg

    def record(group: int, number: int) -> None:
        killed.append(group)
        kill(group, number)

    monkeypatch.setattr(os, "killpg", record)
    with running(python("pass")) as child:
        child.process.wait(120.0)
        assert not child.is_running
        child.end()
    assert killed == [child.pid]


def test_a_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError), running(["/no/such/program"]):
        pass


@pytest.mark.parametrize("name", ["log.txt", None])
def test_a_log_keeps_its_end(tmp_path: Path, name: str | None) -> None:
    """Later output of the child follows at once."""
    log = ChildLog(None if name is None else tmp_path / name)
    code = (
        f"import sys; print('x' * {MAX_BYTES} + 'last', flush=True); input(); print()\n"
        "print('more')\n"
    )
    streams = Streams(subprocess.PIPE, log.file, log.file)
    with running(python(code), streams) as child:
        pipe = child.process.stdin
        assert pipe is not None

        def tick() -> None:
            if log.last_line().endswith("last") and not pipe.closed:
                log.cut()
                pipe.write(b"\n")
                pipe.close()

        assert child.wait(Limits(120, poll_s=0.01), tick) is None
    text = log.tail(2 * MAX_BYTES)
    assert text.endswith("xlast\n\nmore\n")
    assert len(text) == KEPT_BYTES + len("\nmore\n")
    assert log.last_line() == "more"
    log.clear()
    assert log.tail() == ""
    assert log.last_line() == ""
    log.close()


def test_exit_codes_are_described() -> None:
    assert describe_end(3) == "exit code 3"
    assert describe_end(-signal.SIGKILL) == "signal SIGKILL"
    assert describe_end(-250) == "signal 250"
