"""Feed a child process more input than a pipe can buffer."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from pocketserve.child.feed import PipeFeed
from pocketserve.child.process import Child, Limits, Streams, running

DATA = os.urandom(3 << 20)
HASH = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
LIMITS = Limits(120, poll_s=0.01)


def start(code: str) -> tuple[Child, PipeFeed]:
    child = Child(
        [sys.executable, "-c", code], Streams(subprocess.PIPE, subprocess.PIPE)
    )
    assert child.process.stdin is not None
    return child, PipeFeed(child.process.stdin, DATA)


def test_all_input_arrives() -> None:
    child, feed = start(HASH)
    assert child.wait(LIMITS, feed.push) is None
    assert child.process.stdout is not None
    text = child.process.stdout.read().decode().strip()
    assert text == hashlib.sha256(DATA).hexdigest()
    feed.push()  # further calls do nothing
    child.end()


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import os; os.close(0)"])
def test_a_child_that_reads_nothing_is_not_an_error(code: str) -> None:
    child, feed = start(code)
    assert child.wait(LIMITS, feed.push) is None
    feed.push()
    child.end()


def test_nothing_is_written_when_the_pipe_is_full() -> None:
    """The call doesn't block, so that any thread may kill the child."""
    with running(["sleep", "600"], Streams(subprocess.PIPE)) as child:
        assert child.process.stdin is not None
        feed = PipeFeed(child.process.stdin, DATA)
        for _ in range(3):
            feed.push()
        assert not child.process.stdin.closed
        child.kill()
        assert not child.is_running
