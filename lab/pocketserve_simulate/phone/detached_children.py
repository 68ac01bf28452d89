"""Processes that a command started in sessions of their own: no signal to its group reaches them, Android's would."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

MAX = 256  # Processes that are followed. Android ends an app's far sooner.


class DetachedChildren:
    """The descendants of a process that are not in its group. A descriptor holds each, since ids are used again.

    Not for several threads at a time.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}

    def search(self, leader: int) -> None:
        """Find new ones below the leader of the group. It reads the tree of processes: too much for every signal."""
        self.send(
            0
        )  # forgets those that have ended, whose ids may be those of new ones
        for pid in descendants(leader) - self._descriptors.keys():
            with contextlib.suppress(OSError):
                if len(self._descriptors) < MAX and os.getpgid(pid) != leader:
                    self._descriptors[pid] = os.pidfd_open(pid)
                    if pid not in descendants(
                        leader
                    ):  # another process has the id by now
                        os.close(self._descriptors.pop(pid))

    def send(self, number: int) -> None:
        """Send a signal to all of them, and forget those that have ended."""
        for pid, descriptor in list(self._descriptors.items()):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except OSError:
                os.close(self._descriptors.pop(pid))

    def forget(self) -> None:
        """Forget all."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def descendants(pid: int) -> set[int]:
    """Return the children of a process, and theirs, up to a number; empty where the system does not list them."""
    pids: set[int] = set()
    waiting = [pid]
    while waiting and len(pids) < MAX:
        new = set(_children(waiting.pop())) - pids
        pids |= new
        waiting += new
    return pids


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(
        OSError
    ):  # it may end meanwhile, which Path.glob does not bear before 3.13
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError):
                yield from map(
                    int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
                )
