"""Follow processes in sessions of their own."""

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


def test_ended_processes_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node and trials are short-lived, and the last one is followed like the first."""
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
        assert leader.stdin is not None
        assert leader.stdout is not None
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


def test_a_process_that_ends_meanwhile_has_no_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(_path: str) -> list[str]:
        raise ProcessLookupError

    monkeypatch.setattr(os, "listdir", gone)
    assert descendants(os.getpid()) == set()
