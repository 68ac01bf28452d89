"""The policy of queueing, batching and fair sharing.

It has no threads, locks or clock.

Each :class:`EntryQueue` belongs to one set of sessions; all queues of an engine meet in one :class:`FairScheduler`.
Time is an argument, so that a simulation drives the code of the server (`tests/engine/test_policy_simulation.py`).

* Lower ranks go first, then earlier arrivals. A request whose deadline has passed is never started. One that would most
  likely end too late goes behind those that can still make it: under overload, strict order would start every request
  just before its deadline and finish it just after.
* A newer request of a stream replaces the older one that waits.
* A full queue refuses the newcomer, or evicts the last entry of a lower rank.
* Entries with the same batch key are taken together, up to the queue's limits of rows and bytes, as long as that is
  measured to take less time for each row than one by one.
* Steps of one sequence are started in their order, one at a time.
* Between queues, the flow that has had the least service goes next, and a flow that was away is brought up to where the
  others are. Only so many runs are under way at a time, and one slot is kept from each flow, so that one model cannot
  shut out the others. Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", 1996.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve_wire import ErrorCode

RECENT_SHARE = 0.2
"""Weight of the newest run in the moving mean of run times."""


class Entry:
    """A request, as the policy sees it.

    Attributes:
        options: its deadline (seconds after which it is not started), arrival (decides which of two requests of a
            stream is the newer), rank (lower goes first) and stream ("" is none).
        steps: the unfinished steps of its sequence, this one among them; None for a request of no sequence.
        key, rows, size, number: see :meth:`EntryQueue.enqueue`.
        had_alternative: another entry was there to be batched with when it was started.
    """

    # Attributes of waiting requests are set by enqueue(): most requests do not wait.
    __slots__ = ("had_alternative", "key", "number", "options", "rows", "size", "steps")

    key: Hashable | None
    rows: int
    size: int
    number: int
    had_alternative: bool

    def __init__(self, options: RequestOptions) -> None:
        self.options = options
        self.steps: deque[Any] | None = None

    @property
    def blocked(self) -> bool:
        """Return whether an earlier step of the sequence is unfinished."""
        return self.steps is not None and self.steps[0] is not self


class BatchingAdvisor:
    """Measures whether batching pays, by trying both ways.

    Some models take as long for several rows one by one.

    One window of batches, one of single runs, then the better way for a long while, and again.
    """

    __slots__ = ("_costs", "_left", "_samples", "together")

    WINDOW = 9
    KEPT = 500
    """Runs of one trial; the first is not counted, since frameworks prepare themselves for a new size. Runs between
    trials."""

    def __init__(self) -> None:
        self.together = True
        self._samples: list[float] = []
        self._costs: list[float] = []
        self._left = 0

    def note(self, rows: int, run_s: float, together: bool) -> None:
        """Learn from a run that could have been either."""
        if together is not self.together:
            return  # it was started before the way was changed
        if self._left:
            self._left -= 1
            if not self._left:
                self.together, self._costs = True, []
            return
        self._samples.append(run_s / rows)
        if len(self._samples) <= self.WINDOW:
            return
        self._costs.append(sorted(self._samples[1:])[self.WINDOW // 2])  # the median
        self._samples = []
        if len(self._costs) == 1:
            self.together = False
        else:
            self.together, self._left = self._costs[0] <= self._costs[1], self.KEPT


class Flow:
    """The service time of one model version; several queues may share it.

    Attributes:
        service_time: seconds, raised to the others' level after an idle time.
        busy: runs under way.
    """

    __slots__ = ("busy", "service_time")

    def __init__(self) -> None:
        self.service_time = 0.0
        self.busy = 0


class EntryQueue:
    """The requests that wait for one set of sessions.

    Args:
        sessions: opaque; all idle.
        limit: requests that may wait.
        flow: is charged for the runs.
        max_rows, max_bytes: limits of one batch; a request that is larger by itself runs alone.
        advisor: decides whether to batch at all; None always does.

    Attributes:
        waiting: entries in the order in which they would be started.
        recent_run_s: a moving mean of the runs' lengths.
        streams: by client and name, the one request of each stream that waits.
    """

    __slots__ = (
        "_count", "advisor", "flow", "idle", "limit", "max_bytes", "max_rows", "recent_run_s", "streams", "waiting"
    )  # fmt: skip

    def __init__(
        self,
        sessions: Iterable[Any],
        limit: int,
        flow: Flow | None = None,
        max_rows: int = 1,
        max_bytes: int = 2**22,
        advisor: BatchingAdvisor | None = None,
    ) -> None:
        self.idle: deque[Any] = deque(sessions)
        self.limit = limit
        self.flow = flow or Flow()
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.advisor = advisor
        self.waiting: list[Entry] = []
        self.recent_run_s = 0.0
        self.streams: dict[Hashable, Entry] = {}
        self._count = 0

    def enqueue(
        self,
        entry: Entry,
        now: float,
        key: Hashable | None = None,
        rows: int = 1,
        size: int = 0,
    ) -> tuple[Entry, ErrorCode] | None:
        """Add a request and number it.

        A newer request of a stream takes over the older one's number.

        Args:
            key: requests with the same one may run as one batch; None always runs alone.
            rows, size: batch rows and bytes of its inputs.

        Returns:
            The entry that has to go for it, and why: the newcomer itself, or one that waited; None when none has to.
        """
        entry.key, entry.rows, entry.size = key, rows, size
        entry.had_alternative = False
        older = self.streams.get(entry.options.stream) if entry.options.stream else None
        if older is not None:
            if entry.options.arrived < older.options.arrived:
                return entry, ErrorCode.SUPERSEDED
            self.remove(older)
            entry.number = older.number
            self._insert(entry)
            return older, ErrorCode.SUPERSEDED
        evicted = None
        if len(self.waiting) >= self.limit:
            evicted = self._evict_for(entry, now)
            if evicted[0] is entry:
                return evicted
            self.remove(evicted[0])
        self._count += 1
        entry.number = self._count
        self._insert(entry)
        return evicted

    def _insert(self, entry: Entry) -> None:
        index = len(self.waiting)  # from the back: nearly always the right end
        while index and _order(self.waiting[index - 1]) > _order(entry):
            index -= 1
        self.waiting.insert(index, entry)
        if entry.options.stream:
            self.streams[entry.options.stream] = entry

    def _evict_for(self, entry: Entry, now: float) -> tuple[Entry, ErrorCode]:
        for waiting_entry in self.waiting:
            if waiting_entry.options.deadline <= now:
                return waiting_entry, ErrorCode.DEADLINE_EXCEEDED
        last = self.waiting[-1]
        return (
            last if entry.options.rank < last.options.rank else entry
        ), ErrorCode.QUEUE_FULL

    def remove(self, entry: Entry) -> bool:
        """Remove a request; return whether it was still waiting."""
        try:
            self.waiting.remove(entry)
        except ValueError:
            return False
        if entry.options.stream and self.streams.get(entry.options.stream) is entry:
            del self.streams[entry.options.stream]
        return True

    def take(self, now: float) -> list[Entry]:
        """Remove and return the next batch; empty if none can start."""
        first = self._choose(now)
        if first is None:
            return []
        batch = [first]
        if first.key is not None and self.max_rows > 1:
            members = self._batch_members(first, now)
            first.had_alternative = bool(members)
            if self.advisor is None or self.advisor.together:
                batch += members
        for entry in batch:
            self.remove(entry)
        return batch

    def _choose(self, now: float) -> Entry | None:
        late = None
        for entry in self.waiting:
            if entry.options.deadline <= now or entry.blocked:
                continue
            if entry.options.deadline > now + self.recent_run_s:
                return entry
            late = late or entry
        # Rather one that may come too late than none: the mean may be wrong, and only a run can correct it.
        return late

    def _batch_members(self, first: Entry, now: float) -> list[Entry]:
        rows, size, members = first.rows, first.size, []
        for entry in self.waiting:
            if (
                entry is first
                or entry.key != first.key
                or entry.options.deadline <= now
            ):
                continue
            if (
                rows + entry.rows <= self.max_rows
                and size + entry.size <= self.max_bytes
            ):
                rows, size = rows + entry.rows, size + entry.size
                members.append(entry)
        return members


class FairScheduler:
    """All queues of an engine and their shared slots.

    Args:
        slots: runs at a time, over all queues. A flow gets one less, but at least one.

    Attributes:
        busy: runs under way.
        contenders: queues with waiting requests, in order of arrival.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.busy = 0
        self.contenders: dict[EntryQueue, None] = {}
        self._virtual_time = 0.0  # the service time of the flow that was started last

    def start(self, queue: EntryQueue) -> Any | None:
        """Return an idle session for a new request, None if it must wait."""
        busy = queue.flow.busy
        if (
            not queue.idle
            or self.busy >= self.slots
            or (busy and busy >= self.slots - 1)
        ):
            return None
        return self._begin(queue)

    def enqueue(
        self,
        queue: EntryQueue,
        entry: Entry,
        now: float,
        key: Hashable | None = None,
        rows: int = 1,
        size: int = 0,
    ) -> tuple[Entry, ErrorCode] | None:
        """Add a request to a queue; see :meth:`EntryQueue.enqueue`."""
        evicted = queue.enqueue(entry, now, key, rows, size)
        self.contenders[queue] = None
        return evicted

    def remove(self, queue: EntryQueue, entry: Entry) -> bool:
        """Remove a request; return whether it was still waiting."""
        removed = queue.remove(entry)
        if not queue.waiting:
            self.contenders.pop(queue, None)
        return removed

    def finish(
        self,
        queue: EntryQueue,
        session: Any,
        run_s: float,
        entries: Sequence[Entry] = (),
        prepare_s: float = 0.0,
    ) -> None:
        """Record the end of a run.

        Call :meth:`next` afterwards until it returns None.

        Args:
            entries: those of the run that had waited for it.
            prepare_s: the part of the run that decoded its input, which says nothing of the next run.
        """
        if entries and queue.advisor is not None and entries[0].had_alternative:
            queue.advisor.note(
                sum(entry.rows for entry in entries), run_s, len(entries) > 1
            )
        queue.recent_run_s += RECENT_SHARE * (run_s - prepare_s - queue.recent_run_s)
        flow = queue.flow
        flow.service_time += run_s
        flow.busy -= 1
        self.busy -= 1
        queue.idle.append(session)

    def next(self, now: float) -> tuple[EntryQueue, Any, list[Entry]] | None:
        """Return the next run: queue, session and entries.

        None if no slot is free or no entry can start.
        """
        passed_by: list[EntryQueue] = []
        while (queue := self._least_served(passed_by)) is not None:
            entries = queue.take(now)
            if not queue.waiting:
                self.contenders.pop(queue, None)
            if entries:
                return queue, self._begin(queue), entries
            passed_by.append(queue)
        return None

    def _least_served(self, passed_by: list[EntryQueue]) -> EntryQueue | None:
        if self.busy >= self.slots:
            return None
        limit = max(1, self.slots - 1)
        ready = [
            q
            for q in self.contenders
            if q.idle and q.flow.busy < limit and q not in passed_by
        ]
        return min(ready, key=lambda queue: queue.flow.service_time, default=None)

    def _begin(self, queue: EntryQueue) -> Any:
        flow = queue.flow
        if flow.service_time < self._virtual_time:
            flow.service_time = self._virtual_time
        else:
            self._virtual_time = flow.service_time
        flow.busy += 1
        self.busy += 1
        return queue.idle.popleft()


def _order(entry: Entry) -> tuple[int, int]:
    return entry.options.rank, entry.number
