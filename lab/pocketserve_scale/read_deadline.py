"""End the reading of a request that comes too slowly, where the engine in front reads and knows no deadline."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class ReadDeadline:
    """Shuts the receiving half of connections that are read for too long; their reader then sees the stream's end.

    A timeout of the connection is not enough: it holds for each piece, and a byte before each timeout renews it.
    One thread watches all connections; it starts with the first one. May be used from several threads.

    Args:
        seconds: that a request may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        # By thread, as a descriptor that was closed may be another connection's; the first one ends first.
        self._deadlines: dict[
            int, tuple[int, float]
        ] = {}  # descriptor and end by the monotonic clock
        self._is_idle = (
            True  # the watching thread waits for a connection, or has not started
        )
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, connection: socket.socket) -> Iterator[None]:
        """Watch a connection, which stays open meanwhile, for as long as the context lasts.

        Within it another context of the same thread has the same deadline, and ends the watch.
        """
        descriptor = (
            connection.fileno()
        )  # TLS gives the connection a new object, not a new descriptor
        with self._changed:
            self._deadlines.setdefault(
                threading.get_ident(), (descriptor, time.monotonic() + self._seconds)
            )
            if self._is_idle:
                self._wake()
        try:
            yield
        finally:
            with self._changed:
                self._deadlines.pop(threading.get_ident(), None)

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
                thread, (descriptor, end) = next(iter(self._deadlines.items()))
                left = end - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                del self._deadlines[thread]
                with suppress(OSError):  # the peer has closed it
                    _end_receiving(descriptor)


def _end_receiving(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RD)
