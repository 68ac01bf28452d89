"""Simulate time for the policy's tests: queues, slots, and a jumping clock."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.policy import Entry, EntryQueue, FairScheduler
from pocketserve_wire import ErrorCode

FOREVER = 1e9


@dataclass
class Fate:
    """The outcome of one request; ``code`` None is an answer."""

    entry: Entry
    queue: EntryQueue
    arrived: float
    ended: float
    started: float | None = None
    code: ErrorCode | None = None

    @property
    def age(self) -> float:
        return self.ended - self.arrived


@dataclass
class World:
    """Lanes, slots and a clock that jumps from event to event.

    Attributes:
        cost: seconds of a run, by queue and rows.
    """

    slots: int
    cost: dict[EntryQueue, Callable[[int], float]] = field(default_factory=dict)
    now: float = 0.0
    fates: list[Fate] = field(default_factory=list)
    service: dict[EntryQueue, float] = field(default_factory=lambda: defaultdict(float))
    runs: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.sharing = FairScheduler(self.slots)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrivals: dict[Entry, float] = {}
        self._batch: dict[Entry, dict[str, Any]] = {}
        self._waited: set[Entry] = set()
        self._running: set[int] = set()

    def queue(
        self,
        seconds: float | Callable[[int], float],
        limit: int = 64,
        sessions: int = 1,
        **more: Any,
    ) -> EntryQueue:
        queue = EntryQueue([object() for _ in range(sessions)], limit, **more)
        self.cost[queue] = seconds if callable(seconds) else lambda rows: seconds * rows
        return queue

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def send(
        self, queue: EntryQueue, time: float, timeout: float = FOREVER, **terms: Any
    ) -> Entry:
        """Add a request that arrives at this time and must start within a timeout."""
        batch = {}
        for name in ("key", "rows", "size"):
            if name in terms:
                batch[name] = terms.pop(name)
        entry = Entry(RequestOptions(time + timeout, arrived=time, **terms))
        self._batch[entry] = batch
        self.at(time, lambda: self._arrive(queue, entry))
        return entry

    def vanish(self, queue: EntryQueue, entry: Entry, time: float) -> None:
        """Let the request's client disconnect."""

        def leave() -> None:
            if self.sharing.remove(queue, entry):
                self._end(entry, queue, ErrorCode.CANCELLED)

        self.at(time, leave)

    def run(self, until: float = FOREVER) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self._check()

    def _check(self) -> None:
        assert 0 <= self.sharing.busy <= max(self.slots, 1)
        for queue in self.cost:
            assert len(queue.waiting) <= queue.limit
            assert queue.waiting == sorted(
                queue.waiting, key=lambda entry: (entry.options.rank, entry.number)
            )

    def _arrive(self, queue: EntryQueue, entry: Entry) -> None:
        self._arrivals[entry] = self.now
        session = self.sharing.start(queue)
        if session is not None:
            self._start(queue, session, [entry])
            return
        self._waited.add(entry)
        evicted = self.sharing.enqueue(
            queue, entry, self.now, **self._batch.get(entry, {})
        )
        if evicted is not None:
            self._end(evicted[0], queue, evicted[1])
        if entry.options.deadline < FOREVER:
            self.at(entry.options.deadline, lambda: self._expire(queue, entry))

    def _expire(self, queue: EntryQueue, entry: Entry) -> None:
        if self.sharing.remove(queue, entry):
            self._end(entry, queue, ErrorCode.DEADLINE_EXCEEDED)

    def _start(self, queue: EntryQueue, session: object, entries: list[Entry]) -> None:
        assert id(session) not in self._running
        assert all(entry.options.deadline > self.now for entry in entries)
        self._running.add(id(session))
        seconds = self.cost[queue](
            sum(self._batch.get(entry, {}).get("rows", 1) for entry in entries)
        )
        self.runs[len(entries)] += 1
        begun = self.now
        self.at(
            self.now + seconds,
            lambda: self._finish(queue, session, entries, begun, seconds),
        )

    def _finish(
        self,
        queue: EntryQueue,
        session: object,
        entries: list[Entry],
        begun: float,
        seconds: float,
    ) -> None:
        self._running.remove(id(session))
        self.service[queue] += seconds
        for entry in entries:
            self._end(entry, queue, None, begun)
        self.sharing.finish(
            queue,
            session,
            seconds,
            [entry for entry in entries if entry in self._waited],
        )
        while (found := self.sharing.next(self.now)) is not None:
            self._start(*found)

    def _end(
        self,
        entry: Entry,
        queue: EntryQueue,
        code: ErrorCode | None,
        started: float | None = None,
    ) -> None:
        self.fates.append(
            Fate(
                entry,
                queue,
                self._arrivals.pop(entry),
                self.now,
                started,
                code,
            )
        )

    def answers(self, queue: EntryQueue | None = None) -> list[Fate]:
        return [
            fate
            for fate in self.fates
            if fate.code is None and queue in (None, fate.queue)
        ]

    def codes(self) -> Counter[ErrorCode | None]:
        return Counter(fate.code for fate in self.fates)

    @property
    def unanswered(self) -> int:
        return len(self._arrivals)
