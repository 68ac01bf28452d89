"""Wait for many descriptors, each reported once.

Uses epoll if available, else poll.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Final, Protocol

ONCE: Final = 1 << 30
"""Report one event and then no more until the next ``modify``; epoll's own number for it."""

READABLE: Final = select.POLLIN | ONCE
BROKEN: Final = select.POLLHUP | select.POLLERR
"""Always reported; epoll has the same numbers."""


class Poller(Protocol):
    """The part of ``select.epoll`` that the event loop needs.

    All methods but ``poll`` may be called from any thread.
    """

    def register(self, descriptor: int, events: int) -> None:
        """Know a descriptor."""

    def modify(self, descriptor: int, events: int) -> None:
        """Wait for something else."""

    def unregister(self, descriptor: int) -> None:
        """Forget a descriptor."""

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        """Wait for events; at most ``timeout`` seconds."""

    def close(self) -> None:
        """Close the descriptors."""


class PollPoller:
    """Emulates epoll with ``poll``.

    Each change wakes the waiting thread.
    """

    def __init__(self) -> None:
        self._events: dict[int, int] = {}
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def register(self, descriptor: int, events: int) -> None:
        """Know a descriptor."""
        self.modify(descriptor, events)

    def modify(self, descriptor: int, events: int) -> None:
        """Wait for something else."""
        with self._lock:
            self._events[descriptor] = events
            self._wake()

    def unregister(self, descriptor: int) -> None:
        """Forget a descriptor."""
        with self._lock:
            self._events.pop(descriptor, None)
            self._wake()

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        """Wait for events, at most ``timeout`` seconds.

        It may return early without events.
        """
        waiting = select.poll()
        waiting.register(self._wake_read, select.POLLIN)
        with self._lock:
            registered = dict(self._events)
        for descriptor, events in registered.items():
            waiting.register(descriptor, events & ~ONCE)
        milliseconds = None if timeout is None else 1000 * timeout
        ready = []
        for descriptor, events in waiting.poll(milliseconds):
            if descriptor == self._wake_read:
                self._drain_wakeups()
            elif self._take(descriptor, registered[descriptor]):
                ready.append((descriptor, events))
        return ready

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _take(self, descriptor: int, registered: int) -> bool:
        """Return whether an event is still wanted; forget one-shot events."""
        with self._lock:
            if self._events.get(descriptor) != registered:
                return False  # changed since; a remaining event is reported again
            if registered & ONCE:
                del self._events[descriptor]
        return True

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is being woken already
            os.write(self._wake_write, b"\0")


def best_poller() -> Poller:
    """Return epoll, or the best substitute."""
    if hasattr(select, "epoll"):
        poller: Poller = select.epoll()
        return poller
    return PollPoller()
