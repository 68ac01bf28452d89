"""A model's queue: its sessions and waiting requests.

If a session is idle, the submitting thread runs the request. Otherwise the request waits
here, without a thread, until it gets a session, its deadline passes, its client cancels
it, or another request replaces it. `policy.py` decides which one is next; this file adds
the lock and the threads. Two threads never use a session at the same time: TFLite
interpreters would silently give wrong answers.

The thread that ends a run chooses the next one. It runs that one itself if both allow it;
otherwise the next request's transport provides a thread. The first request of a batch
leads: its thread runs the batch and ends all its requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from pocketserve.engine.scheduling.cancellation import cancelled
from pocketserve.engine.scheduling.entries import Job, QueueEntry
from pocketserve.engine.scheduling.policy import (
    BatchingAdvisor,
    Entry,
    EntryQueue,
    FairScheduler,
    Flow,
)
from pocketserve.messages import plural
from pocketserve.runtimes.base import Session
from pocketserve_wire import ApiError, ErrorCode

log = logging.getLogger(__name__)

NEVER = float("inf")


class Batcher(Protocol):
    """Run several requests as one."""

    max_rows: int

    def describe(self, entry: QueueEntry) -> tuple[Hashable | None, int, int]:
        """Return a request's batch key, rows and bytes.

        None as key: it runs alone.
        """
        ...

    def run(
        self, session: Session, entries: Sequence[QueueEntry]
    ) -> tuple[list[Any], int]:
        """Return each request's result or exception, and the runs."""
        ...


class Scheduler:
    """The lock and slots shared by all queues, and the deadline thread.

    Args:
        slots: runs at a time.
        clock: seconds, monotonic.

    Attributes:
        policy: who runs next; only touched under the lock.
        lock: held for decisions only, never while a model runs.
    """

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.policy = FairScheduler(slots)
        self.lock = threading.Lock()
        self._clock = clock
        self._alarm = NEVER  # the earliest deadline of those that wait, or earlier
        self._alarm_changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None

    def resize(self, slots: int) -> None:
        """Change the number of concurrent runs.

        Call :meth:`start_waiting` afterwards, under no other lock.
        """
        with self.lock:
            self.policy.slots = slots

    def start_waiting(self) -> None:
        """Start requests that no longer need to wait."""
        with self.lock:
            leaders = self._next_runs()
        for leader in _begin(leaders):
            _run_inline(leader.begin)

    def enqueue(
        self,
        queue: EntryQueue,
        entry: QueueEntry,
        key: Hashable | None,
        rows: int,
        size: int,
    ) -> Session | None:
        """Add a request to a queue, or return a session that became idle.

        Raises:
            ApiError: QUEUE_FULL or SUPERSEDED for this request; another that has to go for it is failed.
        """
        with self.lock:
            session: Session | None = (
                None if entry.blocked else self.policy.start(queue)
            )
            if session is not None:
                return session
            evicted = self.policy.enqueue(queue, entry, self._clock(), key, rows, size)
            if entry.options.deadline < self._alarm and (
                evicted is None or evicted[0] is not entry
            ):
                self._set_alarm(entry.options.deadline)
            waiting, recent_s = len(queue.waiting), queue.recent_run_s
        if evicted is None:
            return None
        if evicted[0] is entry:
            raise _refusal(evicted[1], queue.limit, recent_s * (waiting + 1))
        _fail(evicted[0], _refusal(evicted[1], queue.limit, recent_s * (waiting + 1)))
        return None

    def remove(self, queue: EntryQueue, entry: QueueEntry) -> bool:
        """Remove a request from its queue; return whether it was waiting."""
        with self.lock:
            return self.policy.remove(queue, entry)

    def finish(
        self,
        queue: EntryQueue,
        session: Session,
        run_s: float,
        entries: Sequence[Entry] = (),
        prepare_s: float = 0.0,
    ) -> list[QueueEntry]:
        """Record the end of a run, and assign its session and slot.

        Returns:
            The leaders of the next runs; the calling code starts each.
        """
        with self.lock:
            self.policy.finish(queue, session, run_s, entries, prepare_s)
            if not self.policy.contenders:
                return []
            if self._thread is None:  # it could not be started
                self._set_alarm(self._earliest_deadline())
            return self._next_runs()

    def _earliest_deadline(self) -> float:
        earliest = NEVER
        for queue in self.policy.contenders:
            for entry in queue.waiting:
                earliest = min(earliest, entry.options.deadline)
        return earliest

    def _next_runs(self) -> list[QueueEntry]:
        leaders: list[QueueEntry] = []
        following = self.policy.next(self._clock())
        while following is not None:
            _, session, entries = following
            leader: QueueEntry = entries[0]  # type: ignore[assignment]
            leader.session = session
            leader.batch_members = entries[1:]  # type: ignore[assignment]
            leaders.append(leader)
            following = self.policy.next(self._clock())
        return leaders

    # Deadlines

    def _set_alarm(self, deadline: float) -> None:
        """Have the thread check at this time.

        The alarm remains if the request runs in time, as nearly all do.
        """
        self._alarm = deadline
        if self._thread is not None:
            self._alarm_changed.notify()
            return
        thread = threading.Thread(
            target=self._watch_deadlines, name="pocketserve-deadlines", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no threads left
            self._alarm = NEVER
            log.warning("waiting requests may be rejected late: %s", error)
            return
        self._thread = thread

    def _watch_deadlines(self) -> None:
        while True:
            self.expire()
            with self.lock:
                # Without another deadline, the thread ends.
                if self._alarm == NEVER:
                    self._thread = None
                    return
                left = max(0.0, self._alarm - self._clock())
                self._alarm_changed.wait(min(left, threading.TIMEOUT_MAX))

    def expire(self) -> None:
        """Fail every waiting request whose deadline has passed."""
        with self.lock:
            now = self._clock()
            late: list[Entry] = []
            alarm = NEVER
            for queue in tuple(self.policy.contenders):
                for entry in tuple(queue.waiting):
                    if entry.options.deadline > now:
                        alarm = min(alarm, entry.options.deadline)
                        continue
                    self.policy.remove(queue, entry)
                    late.append(entry)
            self._alarm = alarm
        for entry in late:
            _fail(entry, expired())


class ModelQueue:
    """The queue in front of one version's sessions.

    Args:
        sessions: the instances; at least one.
        queue_limit: requests that may wait; the next is refused.
        clock: seconds, monotonic.
        scheduler: shared with the other queues of an engine; None for one of its own.
        flow: is charged for the runs, where several queues belong to one version.
        batcher: runs several waiting requests as one; None where the model cannot.
        advisor: decides whether that pays; None takes it for granted.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        queue_limit: int,
        clock: Callable[[], float] = time.monotonic,
        scheduler: Scheduler | None = None,
        flow: Flow | None = None,
        batcher: Batcher | None = None,
        advisor: BatchingAdvisor | None = None,
    ) -> None:
        self._batcher = batcher
        max_rows = batcher.max_rows if batcher is not None else 1
        self._entries = EntryQueue(
            sessions, queue_limit, flow, max_rows, advisor=advisor
        )
        self.scheduler = scheduler or Scheduler(len(sessions) + 1, clock)
        self._clock = clock

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._entries.waiting)

    @property
    def batches(self) -> bool:
        """Return whether waiting requests may be batched."""
        return self._batcher is not None

    @property
    def flow(self) -> Flow:
        """The flow that is charged for the runs."""
        return self._entries.flow

    def check_room(self, rank: int, stream: Hashable) -> None:
        """Raise early if :meth:`submit` would reject the request.

        Raises:
            ApiError: QUEUE_FULL.
        """
        entries = self._entries
        if stream or len(entries.waiting) < entries.limit:
            return
        last = entries.waiting[-1:]  # a copy: the queue may shrink meanwhile
        if last and rank >= last[0].options.rank:
            raise _refusal(
                ErrorCode.QUEUE_FULL,
                entries.limit,
                entries.recent_run_s * entries.limit,
            )

    def submit(self, entry: QueueEntry) -> Job | None:
        """Run a request as soon as a session is free; never raises.

        The request fails with QUEUE_FULL; DEADLINE_EXCEEDED if no session was free in
        time; CANCELLED if its client gave up; SUPERSEDED by a newer request of its
        stream.

        Returns:
            A job for this thread if a session is free; None if the request waits or has
            failed.
        """
        entry.submitted_ns = time.perf_counter_ns()
        entry.queue = self
        try:
            if self._clock() >= entry.options.deadline:
                raise expired()
            if (
                entry.options.cancellation is not None
                and entry.options.cancellation.cancelled
            ):
                raise cancelled()
            session: Session | None = None
            if entry.steps is None or not entry.blocked:
                with self.scheduler.lock:
                    session = self.scheduler.policy.start(self._entries)
            if session is None:
                session = self._enqueue(entry)
        except ApiError as error:
            entry.end(error)
            return None
        if session is None:
            return None
        entry.session = session
        return partial(self.run, entry)

    def _enqueue(self, entry: QueueEntry) -> Session | None:
        cancellation = entry.options.cancellation
        key, rows, size = (
            self._batcher.describe(entry) if self._batcher is not None else (None, 1, 0)
        )
        if cancellation is not None:
            cancellation.listen(lambda: self._cancel(entry))
        try:
            session = self.scheduler.enqueue(self._entries, entry, key, rows, size)
        except ApiError:
            if cancellation is not None:
                cancellation.listen(None)
            raise
        if cancellation is not None and session is not None:
            cancellation.listen(None)
        elif cancellation is not None and cancellation.cancelled:
            self._cancel(entry)  # before it was in the queue
        return session

    def _cancel(self, entry: QueueEntry) -> None:
        if self.scheduler.remove(self._entries, entry):
            _fail(entry, cancelled())

    def run(self, entry: QueueEntry) -> Job | None:
        """Run an entry and its batch members, and end them.

        Returns:
            The next run, where this thread is to make it.
        """
        session: Any = entry.session
        has_waited = entry.batch_members is not None
        if entry.batch_members:
            return self._run_batch([entry, *entry.batch_members], session)
        if has_waited and entry.options.cancellation is not None:
            entry.options.cancellation.listen(None)
        started = time.perf_counter_ns()
        try:
            outcome = entry.work(session)
        except BaseException as error:
            outcome = error
        entry.run_ns = run_ns = time.perf_counter_ns() - started
        entry.queue_ns = started - entry.submitted_ns
        if entry.steps is not None:
            entry.steps.popleft()
        members = (entry,) if has_waited else ()
        leaders = self.scheduler.finish(
            self._entries, session, run_ns / 1e9, members, entry.prepare_ns / 1e9
        )
        following = _keep_thread(entry, leaders) if leaders else None
        _end(entry, outcome)
        # An error references this frame, which would keep the request's body alive.
        outcome = None
        return _chain(following) if following else None

    def _run_batch(self, entries: list[QueueEntry], session: Any) -> Job | None:
        assert self._batcher is not None
        for entry in entries:
            if entry.options.cancellation is not None:
                entry.options.cancellation.listen(None)
        started = time.perf_counter_ns()
        try:
            outcomes, executions = self._batcher.run(session, entries)
        except BaseException as error:
            outcomes, executions = [error] * len(entries), 1
        run_ns = time.perf_counter_ns() - started
        leaders = self.scheduler.finish(self._entries, session, run_ns / 1e9, entries)
        # Other threads make the next runs, which must not wait for all these answers.
        following = _begin(leaders)
        _count_batch(entries, executions)
        for entry, outcome in zip(entries, outcomes, strict=True):
            entry.run_ns = run_ns
            entry.queue_ns = started - entry.submitted_ns
            _end(entry, outcome)
        outcomes.clear()
        return _chain(following) if following else None


def _keep_thread(entry: QueueEntry, leaders: list[QueueEntry]) -> list[QueueEntry]:
    """Start the next runs; return those for the thread of an ended entry."""
    following: list[QueueEntry] = []
    if entry.keeps_thread and leaders[0].keeps_thread:
        following.append(leaders.pop(0))
    return following + _begin(leaders)


def _count_batch(entries: list[QueueEntry], executions: int) -> None:
    """Set the batch rows and runs of each entry.

    A batch that ran as one counts for its leader. Otherwise each entry counts its own
    run, and the leader the comparison, too.
    """
    leader = entries[0]
    if executions > 1:
        for entry in entries:
            entry.executions = 1
            entry.batch_rows = None
        leader.executions = executions - (len(entries) - 1)
        return
    for entry in entries:
        entry.executions = 0
        entry.batch_rows = 0
    leader.executions = executions
    leader.batch_rows = sum(entry.rows for entry in entries)


def _begin(leaders: Sequence[QueueEntry]) -> list[QueueEntry]:
    """Start entries on their transports' threads.

    Return those for which the system has no thread.
    """
    left = []
    for leader in leaders:
        try:
            leader.execute(leader.begin)
        except RuntimeError:
            left.append(leader)
    return left


def _chain(entries: list[QueueEntry]) -> Job:
    """Return a job that runs entries in turn, without nesting."""
    if len(entries) == 1:
        return entries[0].begin

    def run_first() -> Job | None:
        _run_inline(entries.pop(0).begin)
        return _chain(entries)

    return run_first


def _run_inline(job: Job | None) -> None:
    while job is not None:
        job = job()


def _end(entry: QueueEntry, outcome: Any) -> None:
    """End a request; its errors must not affect others."""
    try:
        entry.end(outcome)
    except Exception:
        log.exception("unexpected error while answering a request")


def _fail(entry: Any, error: ApiError) -> None:
    """End a request that was removed from its queue."""
    if entry.options.cancellation is not None:
        entry.options.cancellation.listen(None)  # which knows the request
    _end(entry, error)


def expired() -> ApiError:
    """Return the error for a passed deadline."""
    return ApiError(
        ErrorCode.DEADLINE_EXCEEDED,
        "the request's timeout passed before the model could start on it",
    )


def _refusal(code: ErrorCode, limit: int, wait_s: float) -> ApiError:
    if code is ErrorCode.SUPERSEDED:
        return ApiError(
            code,
            "a newer request of the same stream replaced this one; the model was not "
            "run",
        )
    if code is ErrorCode.DEADLINE_EXCEEDED:
        return expired()
    return ApiError(
        code,
        f"the queue of this model is full ({plural(limit, 'request waits', 'requests wait')}); try again later",
        retry_after_s=max(0.1, round(wait_s, 1)),
    )
