"""Who runs next: the pure rules of waiting, batching and sharing. No threads, no locks, no clock of its own.

Each lane has a :class:`EntryQueue`; all lanes of an engine meet in one :class:`FairScheduler`. Time is handed in, so
that a simulation can drive the very code that the server runs (`tests/engine/test_policy_simulation.py`).

The rules:

* In a line, lower ranks go first, then whoever came first. A request whose deadline has passed is never started. One
  that would most likely end too late goes behind those that can still make it: under overload, serving strictly in
  order would start every request just before its deadline and finish it just after.
* A newer request of a stream takes the place of the older one that waits.
* A full line refuses the newcomer, or the last of a lower rank in its stead.
* Requests with the same batch key are taken together, up to the line's limits of rows and bytes, as long as that is
  measured to take less time for each row than one by one.
* Between lines, the account that has got the least service goes next (start-time fair queueing: an account that was
  away is brought up to where the others are, so nobody saves up). Only so many runs at a time, and one slot is kept
  from each account: whatever one model does, another finds room. Sources: Goyal, Vin, Cheng, "Start-time Fair
  Queueing", 1996.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from pocketserve_wire import ErrorCode

RECENT_SHARE = 0.2
"""Weight of the newest run in the moving mean of run times."""


class Entry:
    """One waiting request, as the policy sees it.

    Attributes:
        deadline: seconds after which it is not started.
        arrived: seconds; decides which of two requests of a stream is the newer.
        rank: lower goes first.
        stream: "" is none.
        key: requests with the same one may run as one batch; None always runs alone.
        rows, size: batch rows and bytes of its inputs.
        choice: it was started when there was somebody whom it could run together with.
        place: its number in the line; a newer request of a stream takes over the older one's.
    """

    __slots__ = ("arrived", "choice", "deadline", "key", "place", "rank", "rows", "size", "stream")

    def __init__(
        self,
        deadline: float,
        *,
        arrived: float = 0.0,
        rank: int = 0,
        stream: str = "",
        key: Hashable | None = None,
        rows: int = 1,
        size: int = 0,
    ) -> None:
        self.deadline = deadline
        self.arrived = arrived
        self.rank = rank
        self.stream = stream
        self.key = key
        self.rows = rows
        self.size = size
        self.place = 0
        self.choice = False


class BatchingAdvisor:
    """Learns whether running together pays, by trying both: some models take several rows at once in no less time.

    A window of runs together, one of runs alone, then the better way for a long while, and once more.
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
    """What one model version has got: the measure of fairness. Several lines may share one.

    Attributes:
        service_time: seconds of service, brought up to date when it comes back after a rest.
        busy: runs under way.
    """

    __slots__ = ("busy", "service_time")

    def __init__(self) -> None:
        self.service_time = 0.0
        self.busy = 0


class EntryQueue:
    """The requests that wait for one set of sessions.

    Args:
        sessions: opaque; those that are idle.
        limit: requests that may wait.
        account: who is charged for the runs.
        max_rows, max_bytes: limits of one batch; a request that is larger by itself runs alone.
        gain: decides whether to batch at all; None always does.

    Attributes:
        waiting: tickets in the order in which they would be started.
        recent_run_s: a moving mean of the runs' lengths.
        streams: by name, the one request of each stream that waits.
    """

    __slots__ = (
        "_count", "account", "gain", "idle", "limit", "max_bytes", "max_rows", "recent_run_s", "streams", "waiting"
    )  # fmt: skip

    def __init__(
        self,
        sessions: Iterable[Any],
        limit: int,
        account: Flow | None = None,
        max_rows: int = 1,
        max_bytes: int = 2**22,
        gain: BatchingAdvisor | None = None,
    ) -> None:
        self.idle: deque[Any] = deque(sessions)
        self.limit = limit
        self.account = account or Flow()
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.gain = gain
        self.waiting: list[Entry] = []
        self.recent_run_s = 0.0
        self.streams: dict[str, Entry] = {}
        self._count = 0

    def join(self, entry: Entry, now: float) -> tuple[Entry, ErrorCode] | None:
        """Let a request into the line.

        Returns:
            The one that has to go for it, and why: the newcomer itself, or one that waited; None when none has to.
        """
        older = self.streams.get(entry.stream) if entry.stream else None
        if older is not None:
            if entry.arrived < older.arrived:
                return entry, ErrorCode.SUPERSEDED
            self._replace(older, entry)
            return older, ErrorCode.SUPERSEDED
        evicted = None
        if len(self.waiting) >= self.limit:
            evicted = self._give_way(entry, now)
            if evicted[0] is entry:
                return evicted
            self.leave(evicted[0])
        self._count += 1
        entry.place = self._count
        self._insert(entry)
        return evicted

    def _replace(self, older: Entry, newer: Entry) -> None:
        self.leave(older)
        newer.place = older.place
        self._insert(newer)

    def _insert(self, entry: Entry) -> None:
        # From the back: it is nearly always its place.
        index = len(self.waiting)
        while index and _order(self.waiting[index - 1]) > _order(entry):
            index -= 1
        self.waiting.insert(index, entry)
        if entry.stream:
            self.streams[entry.stream] = entry

    def _give_way(self, entry: Entry, now: float) -> tuple[Entry, ErrorCode]:
        for known in self.waiting:
            if known.deadline <= now:
                return known, ErrorCode.DEADLINE_EXCEEDED
        last = self.waiting[-1]
        return (last if entry.rank < last.rank else entry), ErrorCode.QUEUE_FULL

    def leave(self, entry: Entry) -> bool:
        """Take a request out of the line; whether it was still in it."""
        try:
            self.waiting.remove(entry)
        except ValueError:
            return False
        if entry.stream and self.streams.get(entry.stream) is entry:
            del self.streams[entry.stream]
        return True

    def take(self, now: float) -> list[Entry]:
        """The requests to run next, as one batch; empty when none can be started. They leave the line."""
        first = self._choose(now)
        if first is None:
            return []
        chosen = [first]
        if first.key is not None and self.max_rows > 1:
            batch_members = self._mates(first, now)
            first.choice = bool(batch_members)
            if self.gain is None or self.gain.together:
                chosen += batch_members
        for entry in chosen:
            self.leave(entry)
        return chosen

    def _choose(self, now: float) -> Entry | None:
        hopeless = None
        for entry in self.waiting:
            if entry.deadline > now + self.recent_run_s:
                return entry
            if entry.deadline > now and hopeless is None:
                hopeless = entry
        # Rather one that may come too late than none: the mean may be wrong, and only a run can correct it.
        return hopeless

    def _mates(self, first: Entry, now: float) -> list[Entry]:
        rows, size, batch_members = first.rows, first.size, []
        for entry in self.waiting:
            if entry is first or entry.key != first.key or entry.deadline <= now:
                continue
            if rows + entry.rows <= self.max_rows and size + entry.size <= self.max_bytes:
                rows, size = rows + entry.rows, size + entry.size
                batch_members.append(entry)
        return batch_members


class FairScheduler:
    """All lines of an engine and the slots that they share.

    Args:
        slots: runs at a time, over all lines. An account gets one less, but at least one.

    Attributes:
        busy: runs under way.
        contenders: lines where somebody waits; in order of coming, so that nothing is left to chance.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.busy = 0
        self.contenders: dict[EntryQueue, None] = {}
        self._virtual = 0.0  # the attained service of whoever was started last

    def start(self, line: EntryQueue) -> Any | None:
        """An idle session for a request that has just come; None when it has to join the line."""
        account = line.account
        if not line.idle or self.busy >= self.slots or (account.busy and account.busy >= self.slots - 1):
            return None
        return self._begin(line)

    def join(self, line: EntryQueue, entry: Entry, now: float) -> tuple[Entry, ErrorCode] | None:
        """Let a request wait; see :meth:`EntryQueue.join`."""
        evicted = line.join(entry, now)
        self.contenders[line] = None
        return evicted

    def leave(self, line: EntryQueue, entry: Entry) -> bool:
        """Take a request out of its line; whether it was still in it."""
        found = line.leave(entry)
        if not line.waiting:
            self.contenders.pop(line, None)
        return found

    def finish(self, line: EntryQueue, session: Any, run_s: float, entries: Sequence[Entry] = ()) -> None:
        """A run has ended. Whoever calls asks :meth:`next` then, until there is none.

        Args:
            entries: those who had waited for it.
        """
        if entries and line.gain is not None and entries[0].choice:
            line.gain.note(sum(entry.rows for entry in entries), run_s, len(entries) > 1)
        line.recent_run_s += RECENT_SHARE * (run_s - line.recent_run_s)
        account = line.account
        account.service_time += run_s
        account.busy -= 1
        self.busy -= 1
        line.idle.append(session)

    def next(self, now: float) -> tuple[EntryQueue, Any, list[Entry]] | None:
        """The next run: its line, session and requests; None when no slot is free or nobody can be started."""
        passed_by: list[EntryQueue] = []
        found = None
        while found is None and (line := self._least_served(passed_by)) is not None:
            entries = line.take(now)
            if not line.waiting:
                self.contenders.pop(line, None)
            if entries:
                found = line, self._begin(line), entries
            else:
                passed_by.append(line)
        return found

    def _least_served(self, passed_by: list[EntryQueue]) -> EntryQueue | None:
        if self.busy >= self.slots or not self.contenders:
            return None
        best = None
        for line in self.contenders:
            account = line.account
            if not line.idle or (account.busy and account.busy >= self.slots - 1) or line in passed_by:
                continue
            if best is None or account.service_time < best.account.service_time:
                best = line
        return best

    def _begin(self, line: EntryQueue) -> Any:
        account = line.account
        if account.service_time < self._virtual:
            account.service_time = self._virtual
        else:
            self._virtual = account.service_time
        account.busy += 1
        self.busy += 1
        return line.idle.popleft()


def _order(entry: Entry) -> tuple[int, int]:
    return entry.rank, entry.place
