"""Parts of answers wait for the client to read: one that doesn't costs one buffer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pocketserve.transports.socket.timeouts import Timeouts
from pocketserve.transports.socket.writer import FrameWriter

PART = b"x" * 65_536
WAIT_S = 120.0
Until = Callable[[Callable[[], bool]], None]


class Stalled:
    """A writer whose peer reads only when told to.

    Attributes:
        broken: set once the writer has given up the peer.
    """

    def __init__(self, stall_s: float = WAIT_S) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.settimeout(WAIT_S)
        self.broken = threading.Event()
        self._ours = ours
        self._sent = 0
        self.writer = FrameWriter(
            ours,
            1 << 20,
            Timeouts(stall=stall_s),
            lambda job: threading.Thread(target=job, daemon=True).start(),
            on_finished=ours.close,
            on_broken=self.broken.set,
        )
        while not self.writer.busy:
            self.send()

    def send(self, is_cancelled: Callable[[], bool] = bool) -> bool:
        """Send a part; return whether it was taken."""
        is_sent = self.writer.post_when_idle([PART], len(PART), is_cancelled)
        self._sent += len(PART) if is_sent else 0
        return is_sent

    def read_all(self) -> None:
        """Read everything that was sent before."""
        rest = self._sent
        while rest:
            rest -= len(self.peer.recv(min(rest, 1 << 20)))

    def close(self) -> None:
        """Close both ends."""
        self.writer.drop()
        self.peer.close()
        self._ours.close()


@pytest.fixture
def stalled() -> Iterator[Stalled]:
    pair = Stalled()
    yield pair
    pair.close()


def test_a_part_waits_until_the_client_reads(stalled: Stalled) -> None:
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(stalled.send()))
    thread.start()
    assert not done
    stalled.read_all()
    thread.join(WAIT_S)
    assert done == [True]


def test_a_cancelled_part_is_not_sent(stalled: Stalled) -> None:
    checks: list[int] = []

    def is_cancelled() -> bool:
        checks.append(1)
        return len(checks) == 3

    assert not stalled.send(is_cancelled)


def test_a_part_is_not_sent_after_the_end(stalled: Stalled) -> None:
    stalled.writer.drop()
    assert not stalled.send()


def test_a_client_that_never_reads_is_given_up() -> None:
    stalled = Stalled(stall_s=0.2)
    assert not stalled.send()
    assert stalled.broken.wait(WAIT_S)
    stalled.close()
