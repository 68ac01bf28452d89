"""One thread that waits for new connections, for handshakes, and for bytes and times of quiet connections.

It never blocks on a peer and runs no request. With nothing to do it sleeps without end.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pocketserve.transports.socket.poller import ONCE, READABLE, Poller, best_poller

log = logging.getLogger(__name__)


class EventHandler(Protocol):
    """What is told of events, on the event loop's thread; it must not block."""

    def on_ready(self, events: int) -> None:
        """Bytes came, or the connection ended. Sent once for each :meth:`EventLoop.arm`.

        Args:
            events: what the poller says; see ``poller.BROKEN``.
        """

    def on_time(self) -> None:
        """The time given to :meth:`EventLoop.set_timer` has come."""

    def on_fault(self) -> None:
        """One of the other two raised what nobody foresaw."""


class EventLoop:
    """A loop with deadlines. Everything but :meth:`run` may be called from any thread.

    Args:
        poller: how it waits; by default the best that the system has.
    """

    def __init__(self, poller: Poller | None = None) -> None:
        self._poller = poller or best_poller()
        self._watched: dict[int, EventHandler] = {}
        self._times: dict[EventHandler, float] = {}
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._sleeps_until = 0.0
        self._stopping = self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, select.POLLIN)

    def add(self, descriptor: int, watched: EventHandler) -> None:
        """Know a descriptor, without waiting for it yet."""
        self._watched[descriptor] = watched
        self._poller.register(descriptor, ONCE)

    def arm(self, descriptor: int) -> None:
        """Report once when the descriptor can be read. Costs one system call and wakes nobody."""
        self._poller.modify(descriptor, READABLE)

    def disarm(self, descriptor: int) -> None:
        """Report only that the connection broke."""
        self._poller.modify(descriptor, ONCE)

    def remove(self, descriptor: int, watched: EventHandler) -> None:
        """Forget a descriptor before it is closed; once more does nothing."""
        if self._watched.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)
        self.set_timer(watched, None)

    def set_timer(self, watched: EventHandler, when: float | None) -> None:
        """Call ``on_time`` at a time of the monotonic clock; None forgets it."""
        with self._lock:
            if when is None:
                self._times.pop(watched, None)
                return
            self._times[watched] = when
            late = when < self._sleeps_until
        if late:
            self._wake()

    def call(self, function: Callable[[], None]) -> bool:
        """Run a function on the event loop's thread; False when the event loop has ended."""
        with self._lock:
            if self._closed:
                return False
            self._calls.append(function)
        self._wake()
        return True

    def stop(self) -> None:
        """Make :meth:`run` return soon."""
        self._stopping = True
        self._wake()

    def run(self) -> None:
        """Wait and report until stopped."""
        while not self._has_ended():
            for descriptor, events in self._poller.poll(self._timeout()):
                self._on_event(descriptor, events)
            self._sleeps_until = 0.0
            while self._calls:
                self._run_call(self._calls.popleft())
            self._run_times()
        self._poller.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _on_event(self, descriptor: int, events: int) -> None:
        # Apart, so that the loop does not keep what it reported last while it sleeps.
        if descriptor == self._wake_read:
            self._drain_wakes()
        elif (watched := self._watched.get(descriptor)) is not None:
            self._report(watched, functools.partial(watched.on_ready, events))

    def _has_ended(self) -> bool:
        with self._lock:
            self._closed = self._stopping and not self._calls
            return self._closed

    def _timeout(self) -> float | None:
        with self._lock:
            if self._calls or self._stopping:
                return 0
            # Later callers compare with this, under the same lock: either they are seen here, or they wake us.
            self._sleeps_until = min(self._times.values(), default=float("inf"))
        if self._sleeps_until == float("inf"):
            return None
        return max(0.0, self._sleeps_until - time.monotonic())

    def _run_times(self) -> None:
        if not self._times:
            return
        now = time.monotonic()
        with self._lock:
            due = [watched for watched, when in self._times.items() if when <= now]
            for watched in due:
                del self._times[watched]
        for watched in due:
            self._report(watched, watched.on_time)

    @staticmethod
    def _run_call(function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            log.exception("unexpected error in the socket transport's loop")

    def _report(self, watched: EventHandler, event: Callable[[], None]) -> None:
        try:
            event()
        except Exception:
            log.exception("unexpected error in the socket transport's loop")
            watched.on_fault()

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # it is being woken already
            if not self._closed:
                os.write(self._wake_write, b"\0")

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
