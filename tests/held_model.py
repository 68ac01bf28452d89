"""Keep a model busy for as long as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any

from framed import TIMEOUT_S, Framed
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import ModelQueue
from queue_entries import run

Until = Callable[[Callable[[], bool]], None]


class HeldModel:
    """A model, Petals by default, whose session is held until :meth:`go`.

    Attributes:
        peer: a connection to its server.
        handle, queue: the held version and its queue.
    """

    handle: ModelHandle
    queue: ModelQueue
    _held: Future[Any]

    def __init__(self, started: Any, until: Until, model: str = "petals") -> None:
        self.model = model
        self.service = started.service
        self.server = started.server
        self.connect = started.connect
        self.until, self._go = until, threading.Event()
        self.peer: Framed = started.connect()

    def hold(self, pool: ThreadPoolExecutor) -> None:
        """Acquire the session of the loaded model."""
        handle: ModelHandle = self.service.engine.running(self.model, "tflite")
        self.handle = handle
        self.queue = handle.queue
        held = threading.Event()

        def take(session: object) -> None:
            held.set()
            assert self._go.wait(TIMEOUT_S)

        self._held = pool.submit(
            run, self.queue, take, RequestOptions(monotonic() + TIMEOUT_S)
        )
        assert held.wait(TIMEOUT_S)

    def send(self, ask: Callable[[], int]) -> int:
        """Send one request, wait until it is queued, and return its id."""
        before = self.queue.waiting
        sent = ask()
        self.until(lambda: self.queue.waiting == before + 1)
        return sent

    def ended(self, how: str) -> int:
        """Return the number of requests with this outcome, by the statistics."""
        count: int = (
            self.service.engine.statistics(self.model, "tflite").unanswered[how].count
        )
        return count

    def go(self) -> None:
        """Release the session."""
        self._go.set()
        self._held.result(TIMEOUT_S)
