"""Following processes in sessions of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pocketserve_simulate.phone import detached_children
from pocketserve_simulate.phone.detached_children import DetachedChildren, descendants

LEADER = """
import subprocess, sys
for _ in sys.stdin:
    stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(stray.pid, flush=True)
    stray.wait()
    print("ended", flush=True)
"""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads processes as Linux shows them"
)


def test_those_that_have_ended_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there were: Node and trials come and go, and the last one is followed as the first."""
    monkeypatch.setattr(detached_children, "MAX", 1)
    followed = DetachedChildren()
    command = [sys.executable, "-c", LEADER]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as leader:
        assert leader.stdin is not None and leader.stdout is not None
        try:
            for end in (os.kill, lambda _pid, number: followed.send(number)):
                print("another", file=leader.stdin, flush=True)
                stray = int(leader.stdout.readline())
                followed.search(leader.pid)
                assert list(followed._descriptors) == [stray]
                end(stray, signal.SIGKILL)
                assert leader.stdout.readline() == "ended\n"
        finally:
            leader.kill()
            followed.send(signal.SIGKILL)
            followed.forget()


def test_a_process_that_ends_while_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no children then; whoever looks goes on."""

    def gone(_path: str) -> list[str]:
        raise ProcessLookupError

    monkeypatch.setattr(os, "listdir", gone)
    assert descendants(os.getpid()) == set()
