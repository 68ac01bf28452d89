"""The thread that waits for connections, handshakes, bytes and timeouts.

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
    """The interface of event handlers.

    The event loop's thread calls them; they must not block.
    """

    def on_ready(self, events: int) -> None:
        """Handle input or the end of a connection.

        Called once per :meth:`EventLoop.arm`.

        Args:
            events: what the poller says; see ``poller.BROKEN``.
        """

    def on_time(self) -> None:
        """The time given to :meth:`EventLoop.set_timer` has come."""

    def on_fault(self) -> None:
        """Recover from an unexpected error in another handler method."""


class EventLoop:
    """An event loop with deadlines.

    All methods but :meth:`run` may be called from any thread.

    Args:
        poller: how it waits; by default the best that the system has.
    """

    def __init__(self, poller: Poller | None = None) -> None:
        self._poller = poller or best_poller()
        self._handlers: dict[int, EventHandler] = {}
        self._times: dict[EventHandler, float] = {}
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._sleeps_until = 0.0
        self._stopping = self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, select.POLLIN)

    def add(self, descriptor: int, handler: EventHandler) -> None:
        """Know a descriptor, without waiting for it yet."""
        self._handlers[descriptor] = handler
        self._poller.register(descriptor, ONCE)

    def arm(self, descriptor: int) -> None:
        """Report once when the descriptor becomes readable.

        This takes one system call and wakes no thread.
        """
        self._poller.modify(descriptor, READABLE)

    def disarm(self, descriptor: int) -> None:
        """Report only that the connection broke."""
        self._poller.modify(descriptor, ONCE)

    def remove(self, descriptor: int, handler: EventHandler) -> None:
        """Stop watching a descriptor before it is closed.

        Repeated calls do nothing.
        """
        if self._handlers.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)
        self.set_timer(handler, None)

    def set_timer(self, handler: EventHandler, due_at: float | None) -> None:
        """Call ``on_time`` at a monotonic time; None cancels it."""
        with self._lock:
            if due_at is None:
                self._times.pop(handler, None)
                return
            self._times[handler] = due_at
            late = due_at < self._sleeps_until
        if late:
            self._wake()

    def call(self, function: Callable[[], None]) -> bool:
        """Run a function on the event loop's thread.

        Return False if the event loop has ended.
        """
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
        # In a method of its own, so that the sleeping loop holds no reference to a handler.
        if descriptor == self._wake_read:
            self._drain_wakes()
        elif (handler := self._handlers.get(descriptor)) is not None:
            self._report(handler, functools.partial(handler.on_ready, events))

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
            due = [handler for handler, due_at in self._times.items() if due_at <= now]
            for handler in due:
                del self._times[handler]
        for handler in due:
            self._report(handler, handler.on_time)

    @staticmethod
    def _run_call(function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            log.exception("unexpected error in the socket transport's loop")

    def _report(self, handler: EventHandler, event: Callable[[], None]) -> None:
        try:
            event()
        except Exception:
            log.exception("unexpected error in the socket transport's loop")
            handler.on_fault()

    def _wake(self) -> None:
        # The loop is already being woken.
        with (
            self._lock,
            contextlib.suppress(BlockingIOError),
        ):
            if not self._closed:
                os.write(self._wake_write, b"\0")

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
