"""Processes that a command started in sessions of their own.

Signals to the command's group do not reach them; Android's signals do.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

MAX = 256
"""Processes that are tracked; Android allows far fewer per app."""


class DetachedChildren:
    """The descendants of a process that are not in its group.

    Each is identified by a descriptor, since ids are reused. Not thread-safe.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}

    def search(self, leader: int) -> None:
        """Find new descendants of the group's leader.

        This reads the tree of processes, which is too slow for every signal.
        """
        # Drop processes that have ended: new ones may have their ids.
        self.send(0)
        for pid in descendants(leader) - self._descriptors.keys():
            with contextlib.suppress(OSError):
                if len(self._descriptors) >= MAX or os.getpgid(pid) == leader:
                    continue
                self._descriptors[pid] = os.pidfd_open(pid)
                # Another process may have the id by now.
                if pid not in descendants(leader):
                    os.close(self._descriptors.pop(pid))

    def send(self, number: int) -> None:
        """Send a signal to all of them, and drop those that have ended."""
        for pid, descriptor in list(self._descriptors.items()):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except OSError:
                os.close(self._descriptors.pop(pid))

    def forget(self) -> None:
        """Drop all."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def descendants(pid: int) -> set[int]:
    """Return the descendants of a process, up to :data:`MAX`.

    Empty if the system does not list them.
    """
    pids: set[int] = set()
    waiting = [pid]
    while waiting and len(pids) < MAX:
        new = set(_children(waiting.pop())) - pids
        pids |= new
        waiting += new
    return pids


def _children(pid: int) -> Iterator[int]:
    # A process may end at any time, which Path.glob does not support before 3.13.
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{thread}/children")
            with contextlib.suppress(OSError, ValueError):
                yield from map(int, children.read_text().split())
