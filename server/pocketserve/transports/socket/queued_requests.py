"""Requests that wait for their model without a thread: who carries them out, and who sees to their deadlines."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import Final

from pocketserve.inference.queued import QueuedRequest
from pocketserve.transports.socket.event_loop import EventLoop
from pocketserve.transports.socket.threads import Workers

NEVER: Final = float("inf")


class QueuedRequests:
    """The queued requests of all of a server's connections.

    A thread carries out one after the other as long as each has a follower, so that under load none is woken for a
    run. It holds no right to read and waits for no peer. The event loop's thread sees to those whose time is over: its
    alarm is set for the first of them, and left there when that one ends in time, as nearly all do.
    """

    def __init__(self, event_loop: EventLoop, workers: Workers) -> None:
        self._event_loop = event_loop
        self._workers = workers
        self._lock = threading.Lock()
        self._waiting: set[QueuedRequest] = set()
        self._alarm = NEVER
        self._here = threading.local()  # what the thread that asks has still to carry out

    def watch(self, queued: QueuedRequest) -> None:
        """See to it that a queued request does not wait beyond its deadline. It may have been begun by now."""
        with self._lock:
            if queued.begun:
                return
            self._waiting.add(queued)
            if queued.deadline < self._alarm:
                self._set_alarm(queued.deadline)

    def begin(self, queued: QueuedRequest) -> None:
        """Have some thread carry a queued request out, and all that follow.

        It must not wait for a thread that is at work: all of them may be waiting for the session that it was given.
        """
        # In a queue that is emptied: the job lives until the last one that follows is carried out.
        ready = deque([queued])
        if self._workers.submit(partial(self._run_entries, ready), waits=False):
            return
        # No thread is to be had, and this one is better than none.
        mine: deque[QueuedRequest] | None = getattr(self._here, "ready", None)
        if mine is None:
            self._run_entries(ready)
        else:
            mine.append(queued)  # behind the one that it is at: a line of these must not become a tower of calls

    def _run_entries(self, ready: deque[QueuedRequest]) -> None:
        self._here.ready = ready
        try:
            while ready:
                queued = ready.popleft()
                with self._lock:
                    queued.begun = True
                    self._waiting.discard(queued)
                try:
                    queued.answer(queued)
                finally:
                    ready += queued.followers
                    queued.followers = []
        finally:
            self._here.ready = None
            # Only if something like SystemExit ends this thread: sessions are waiting for these.
            for queued in ready:
                self.begin(queued)

    def _set_alarm(self, when: float) -> None:
        self._alarm = when
        self._event_loop.set_timer(self, when if when < NEVER else None)

    # What the event loop tells

    def on_time(self) -> None:
        """The alarm: refuse those whose time is over, and set it for the next."""
        with self._lock:
            now = time.monotonic()
            late = [queued for queued in self._waiting if queued.deadline <= now]
            self._waiting.difference_update(late)
            self._set_alarm(min((queued.deadline for queued in self._waiting), default=NEVER))
        for queued in late:
            queued.expire()

    def on_ready(self, events: int) -> None:
        """There is no descriptor."""

    def on_fault(self) -> None:
        """The loop failed on an alarm: look again at those who are left."""
        with self._lock:
            self._set_alarm(min((queued.deadline for queued in self._waiting), default=NEVER))
