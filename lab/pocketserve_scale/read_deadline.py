"""End the reading of a slow request, for engines without such a deadline."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple


class _Deadline(NamedTuple):
    """A connection's descriptor, and its deadline by the monotonic clock."""

    descriptor: int
    end: float


class ReadDeadline:
    """Shuts down the receiving side of slow connections.

    Their readers see the end of the stream. A timeout of the connection is not enough:
    each byte renews it. One thread watches all connections; it starts with the first
    one. Thread-safe.

    Args:
        seconds: that a request may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        # By thread, as another connection may reuse a closed descriptor; the first
        # deadline ends first.
        self._deadlines: dict[int, _Deadline] = {}
        # The watching thread waits for a connection, or has not started.
        self._is_idle = True
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, connection: socket.socket) -> Iterator[None]:
        """Watch an open connection for as long as the context lasts.

        A nested context of the same thread has the same deadline, and ends the watch.
        """
        # With TLS, the connection changes its object, but not its descriptor.
        end = time.monotonic() + self._seconds
        deadline = _Deadline(connection.fileno(), end)
        thread = threading.get_ident()
        with self._changed:
            self._deadlines.setdefault(thread, deadline)
            if self._is_idle:
                self._wake()
        try:
            yield
        finally:
            with self._changed:
                self._deadlines.pop(thread, None)

    def _wake(self) -> None:
        self._is_idle = False
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="pocketserve-read-deadline", daemon=True
            )
            self._thread.start()
        self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while True:
                if not self._deadlines:
                    self._is_idle = True
                    self._changed.wait()
                    continue
                thread, deadline = next(iter(self._deadlines.items()))
                left = deadline.end - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                del self._deadlines[thread]
                # The client may have closed it.
                with suppress(OSError):
                    _end_receiving(deadline.descriptor)


def _end_receiving(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RD)
