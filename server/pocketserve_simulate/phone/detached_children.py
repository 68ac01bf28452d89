"""Processes that a command started in sessions of their own: no signal to its group reaches them, Android's would."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

LOOK_S = 0.2
"""How often the tree of processes is read; a slowed phone gets hundreds of signals a second."""

MAX = 256
"""Processes that are followed. Android ends an app's far sooner."""


class DetachedChildren:
    """The processes below one, as far as they are not in its group. A descriptor holds each: ids are used again.

    Not for several threads at a time.
    """

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._looked = float("-inf")

    def look(self, leader: int, *, now: bool = False) -> None:
        """Find those that are new, unless that was done a moment ago.

        Args:
            leader: the process whose children, and theirs, are meant; it leads its group.
            now: look in any case.
        """
        if not now and time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        self.send(0)  # forgets those that have ended: they would take the places, and perhaps the ids, of new ones
        for pid in below(leader):
            if pid not in self._held and len(self._held) < MAX:
                self._hold(pid, leader)

    def _hold(self, pid: int, leader: int) -> None:
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == leader:
                return
            descriptor = os.pidfd_open(pid)
            if pid in below(leader):  # still: it is no other process that has the id by now
                self._held[pid] = descriptor
            else:
                os.close(descriptor)

    def send(self, number: int) -> None:
        """Send a signal to all of them; those that have ended are forgotten."""
        for pid, descriptor in list(self._held.items()):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except OSError:
                os.close(self._held.pop(pid))

    def forget(self) -> None:
        """Let go of all."""
        while self._held:
            os.close(self._held.popitem()[1])
        self._looked = float("-inf")


def below(pid: int) -> set[int]:
    """The children of a process, and theirs, up to a number. None where the system does not list them."""
    found: set[int] = set()
    waiting = [pid]
    while waiting and len(found) < MAX:
        for child in _children(waiting.pop()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it may end while it is looked at, which Path.glob does not bear before 3.13
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError):
                yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
