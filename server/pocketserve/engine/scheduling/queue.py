"""A lane: the sessions of one loaded version and the requests that wait for them.

A request that finds a session idle runs at once on the thread that brought it: nothing is handed over. Otherwise it
waits until a session is handed to it, its deadline passes, its caller gives up or a newer request replaces it. Who is
next, `policy.py` decides; this file is the threads and the lock around it. A session is never used by two threads at
once: TFLite interpreters give silently wrong answers when it happens.

The thread that ends a run chooses the next one, but does not run it: its own caller has waited long enough. The first
of those chosen leads: its thread runs the batch, and hands the others their parts. Queued requests have no thread: for
one that leads, one is found. While the line is full, that is the thread that ran the queued request before: having
answered its caller, it goes on with the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

from pocketserve.engine.scheduling.cancellation import cancelled
from pocketserve.engine.scheduling.entries import ALONE, BlockingEntry, CallbackEntry, Described, QueueEntry, RunResult
from pocketserve.engine.scheduling.options import DEFAULT_PRIORITY, RequestOptions
from pocketserve.engine.scheduling.policy import BatchingAdvisor, Entry, EntryQueue, FairScheduler, Flow
from pocketserve.messages import plural
from pocketserve.runtimes.base import Session
from pocketserve_wire import ApiError, ErrorCode

__all__ = ["ModelQueue", "RunResult", "Scheduler"]

T = TypeVar("T")
Work = Callable[[Session], T]


class Batcher(Protocol):
    """Runs several requests as one. What it demands of their work is its own affair: it gets what the lane got."""

    max_rows: int

    def describe(self, work: Any) -> tuple[Hashable | None, int, int]:
        """Return what of a request matters to a batch: key (None: it runs alone), rows and bytes."""
        ...

    def run(self, session: Session, works: Sequence[Any]) -> tuple[list[Any], int]:
        """Each request's result, or the exception that it ends with, and how often the model was run."""
        ...


class Scheduler:
    """The one lock and the one set of slots that all lanes of an engine share.

    Args:
        slots: runs at a time.
        clock: seconds, monotonic.

    Attributes:
        sharing: who runs next; only touched under the lock.
        lock: held for decisions only, never while a model runs.
    """

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.sharing = FairScheduler(slots)
        self.lock = threading.Lock()
        self._clock = clock

    def resize(self, slots: int) -> Sequence[QueueEntry]:
        """Change how many runs there may be at a time.

        Returns:
            As :meth:`finish`.
        """
        with self.lock:
            self.sharing.slots = slots
            return self._hand_over()

    def join(self, line: EntryQueue, waiter: QueueEntry) -> Session | None:
        """Let a request wait, unless a session has become idle meanwhile: then it is returned.

        Raises:
            ApiError: QUEUE_FULL or SUPERSEDED when it has no place in the line.
        """
        with self.lock:
            session: Session | None = self.sharing.start(line)
            if session is not None:
                return session
            evicted = self.sharing.join(line, waiter, self._clock())
            waiting, recent_s = len(line.waiting), line.recent_run_s
        if evicted is None:
            return None
        error = _refusal(evicted[1], line.limit, recent_s * (waiting + 1))
        if evicted[0] is waiter:
            raise error
        refuse(evicted[0], error)  # type: ignore[arg-type]  # all entries here are queue entries
        return None

    def leave(self, line: EntryQueue, waiter: QueueEntry) -> bool:
        """Take a request out of its line; whether it was still waiting."""
        with self.lock:
            return self.sharing.leave(line, waiter)

    def finish(
        self, line: EntryQueue, session: Session, run_s: float, entries: Sequence[Entry] = ()
    ) -> Sequence[QueueEntry]:
        """A run has ended, of these requests that had waited for it: its session and slot go to whoever is next.

        Returns:
            Those who lead the next runs; the caller calls them.
        """
        sharing = self.sharing
        with self.lock:
            sharing.finish(line, session, run_s, entries)
            return self._hand_over() if sharing.contenders else ()

    def _hand_over(self) -> list[QueueEntry]:
        leaders: list[QueueEntry] = []
        while (found := self.sharing.next(self._clock())) is not None:
            leader: QueueEntry = found[2][0]  # type: ignore[assignment]
            leader.session = found[1]
            leader.batch_members = found[2][1:]  # type: ignore[assignment]
            leaders.append(leader)
        return leaders


class ModelQueue:
    """The line in front of one version's sessions.

    Args:
        sessions: the instances; at least one.
        queue_limit: requests that may wait; the next is refused.
        clock: seconds, monotonic.
        scheduler: shared with the other lanes of an engine; None for a lane of its own.
        account: whom the runs are charged to, where several lanes belong to one version.
        batcher: runs several waiting requests as one; None where the model cannot.
        gain: decides whether that pays; None takes it for granted.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        queue_limit: int,
        clock: Callable[[], float] = time.monotonic,
        scheduler: Scheduler | None = None,
        account: Flow | None = None,
        batcher: Batcher | None = None,
        gain: BatchingAdvisor | None = None,
    ) -> None:
        self._batcher = batcher
        max_rows = batcher.max_rows if batcher is not None else 1
        self._line = EntryQueue(sessions, queue_limit, account, max_rows, gain=gain)
        self._scheduler = scheduler or Scheduler(len(sessions) + 1, clock)
        self._lock, self._sharing = self._scheduler.lock, self._scheduler.sharing
        self._clock = clock
        self._under_way: set[str] = set()

    @property
    def may_refuse(self) -> bool:
        """Return whether :meth:`refusal` has anything to say of any request."""
        return len(self._line.waiting) >= self._line.limit or bool(self._line.streams)

    def refusal(self, stream: str = "") -> ApiError | None:
        """Return what a request would be answered at once if it came now; None if that cannot be told without it.

        Args:
            stream: one of this stream, with a newer one behind it; "" is one of no stream and the usual priority.
        """
        if stream:
            waits = stream in self._line.streams
            return _refusal(ErrorCode.SUPERSEDED, self._line.limit, 0.0) if waits else None
        return self._full() if self._gives_no_place(DEFAULT_PRIORITY) else None

    def _gives_no_place(self, rank: int) -> bool:
        if len(self._line.waiting) < self._line.limit:
            return False
        last = self._line.waiting[-1:]  # a copy: the line may shrink meanwhile
        return bool(last) and rank >= last[0].rank

    def _full(self) -> ApiError:
        return _refusal(ErrorCode.QUEUE_FULL, self._line.limit, self._line.recent_run_s * self._line.limit)

    def holds(self, stream: str) -> bool:
        """Return whether a request of this stream waits."""
        return stream in self._line.streams

    def runs(self, stream: str) -> bool:
        """Return whether a request of this stream is being run, by itself."""
        return stream in self._under_way

    @property
    def waiting(self) -> int:
        """Requests in line now."""
        return len(self._line.waiting)

    @property
    def batches(self) -> bool:
        """Return whether requests that wait may be run as one."""
        return self._batcher is not None

    @property
    def busy(self) -> bool:
        """Return whether a request that came now would have to wait."""
        return not self._line.idle

    @property
    def account(self) -> Flow:
        """Whom the runs are charged to."""
        return self._line.account

    @property
    def scheduler(self) -> Scheduler:
        """Return what it shares with the other lanes."""
        return self._scheduler

    def refuse_if_full(self, terms: RequestOptions) -> None:
        """Refuse a request that :meth:`run` would refuse, before anything is done for it. It may still be later.

        Raises:
            ApiError: QUEUE_FULL.
        """
        if not terms.stream and self._gives_no_place(terms.rank):
            raise self._full()

    def run(self, work: Work[T], terms: RequestOptions) -> RunResult[T]:
        """Run ``work`` on a session once it is this request's turn.

        Raises:
            ApiError: QUEUE_FULL at once when the line is full; DEADLINE_EXCEEDED when the turn came too late;
                CANCELLED when the caller gave up before; SUPERSEDED when a newer request of the stream came.
        """
        arrived = time.perf_counter_ns()
        if self._clock() >= terms.deadline:
            raise expired()
        if terms.cancellation is not None and terms.cancellation.cancelled:
            raise cancelled()
        with self._lock:  # the fast path: one lock, no hand-over
            session: Session | None = self._sharing.start(self._line)
        if session is None:
            waiter = BlockingEntry(work, terms, self.describe(work))
            session = self._scheduler.join(self._line, waiter)
            if session is None:
                return self._await_turn(waiter, terms, arrived)
        return self._run_alone(work, session, arrived, stream=terms.stream)

    def enter(self, queued: CallbackEntry, terms: RequestOptions) -> None:
        """Let a queued request wait. Unless this raises, it is begun once, perhaps before this returns.

        Nobody here looks at the clock for it: whoever sends it calls :meth:`expire` once its deadline has passed.

        Raises:
            ApiError: as :meth:`run`.
        """
        cancellation = terms.cancellation
        if self._clock() >= terms.deadline:
            raise expired()
        if cancellation is not None:
            cancellation.check()
            cancellation.listen(lambda: self._give_up(queued))
        try:
            session = self._scheduler.join(self._line, queued)
        except ApiError:
            if cancellation is not None:
                cancellation.listen(None)
            raise
        if session is not None:  # it became idle meanwhile
            queued.session = session
            queued.call()
        elif cancellation is not None and cancellation.cancelled:
            self._give_up(queued)  # it was cancelled before it was in the line

    def expire(self, queued: CallbackEntry) -> None:
        """The deadline of a queued request has passed: begin it, to be refused, unless it was begun before."""
        if self._scheduler.leave(self._line, queued):
            refuse(queued, expired())

    def run_entry(self, queued: CallbackEntry) -> RunResult[Any]:
        """Run a queued request that was begun; called once. What ``followers`` says then is to be carried out
        next.

        Raises:
            ApiError: as :meth:`run`.
        """
        if queued.cancellation is not None:
            queued.cancellation.listen(None)
        return self._outcome(queued, queued.arrived_ns)

    def describe(self, work: Work[Any]) -> Described:
        """Return what of a request matters to a batch."""
        return self._batcher.describe(work) if self._batcher is not None else ALONE

    def _run_alone(
        self, work: Work[T], session: Session, arrived: int, waited: Sequence[QueueEntry] = (), stream: str = ""
    ) -> RunResult[T]:
        if stream:
            self._under_way.add(stream)
        clock = time.perf_counter_ns
        started = clock()
        try:
            result = work(session)
        finally:
            run_ns = clock() - started
            leaders = self._scheduler.finish(self._line, session, run_ns / 1e9, waited)
            if leaders:
                self._pass_on(leaders, waited)
            if stream:
                self._under_way.discard(stream)
        return RunResult(result, started - arrived, run_ns)

    def _pass_on(self, leaders: Sequence[QueueEntry], waited: Sequence[QueueEntry]) -> None:
        """Call those who lead the next runs.

        While the line is full, a queued request that ran alone has one of them follow it on the same thread: one that
        runs all the time gives way at once to those that read and refuse. Else a thread is woken for each run, which
        keeps its core until the run's end, and so the model's memory in that core's caches. After a batch its thread
        has the answers of others to send; the next run must not wait for that.
        """
        line = self._line
        stays = len(waited) == 1 and len(line.waiting) >= line.limit - 1  # one has just left it
        for number, leader in enumerate(leaders):
            if stays and not number:
                _tell(leader, waited[0])
            else:
                leader.call()

    def _await_turn(self, waiter: BlockingEntry, terms: RequestOptions, arrived: int) -> RunResult[Any]:
        if terms.cancellation is None:
            self._wait(waiter)
        else:
            terms.cancellation.listen(lambda: self._give_up(waiter))
            try:
                self._wait(waiter)
            finally:
                terms.cancellation.listen(None)
        return self._outcome(waiter, arrived)

    def _outcome(self, place: QueueEntry, arrived: int) -> RunResult[Any]:
        error, place.error = place.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it knows this frame, and the frame the request: its body would stay for the collector
        if place.session is not None:
            return self._lead(place, place.session, arrived)
        turn = place.turn
        assert turn is not None
        turn.queue_ns -= arrived
        return turn

    def _wait(self, waiter: BlockingEntry) -> None:
        if waiter.given.acquire(timeout=max(0.0, waiter.deadline - self._clock())):
            return
        if self._scheduler.leave(self._line, waiter):
            raise expired()
        # Its turn, or somebody's decision, came while the wait was timing out. A run that is under way has no
        # deadline, and whoever leads it answers in any case.
        waiter.given.acquire()

    def _give_up(self, place: QueueEntry) -> None:
        if self._scheduler.leave(self._line, place):
            refuse(place, cancelled())

    def _lead(self, leader: QueueEntry, session: Session, arrived: int) -> RunResult[Any]:
        if not leader.batch_members:
            return self._run_alone(leader.work, session, arrived, (leader,), leader.stream)
        assert self._batcher is not None
        everyone = [leader, *leader.batch_members]
        started = time.perf_counter_ns()
        outcomes: list[Any] = [ApiError(ErrorCode.INFERENCE_FAILED, "the batch was broken off")] * len(everyone)
        executions = 0
        try:
            outcomes, executions = self._batcher.run(session, [one.work for one in everyone])
        finally:
            ended = time.perf_counter_ns()
            self._pass_on(self._scheduler.finish(self._line, session, (ended - started) / 1e9, everyone), everyone)
            alone = executions != 1  # they were run one by one after all
            for mate, outcome in zip(leader.batch_members, outcomes[1:], strict=True):
                if isinstance(outcome, BaseException):
                    mate.error = outcome
                else:
                    # Whoever answers it knows when it came and takes that off.
                    mate.turn = RunResult(outcome, started, ended - started, int(alone), None if alone else 0)
                _tell(mate, leader)
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0]
        executions -= len(leader.batch_members) if alone else 0
        rows = None if alone else sum(one.rows for one in everyone)
        return RunResult(outcomes[0], started - arrived, ended - started, executions, rows)


def _tell(place: QueueEntry, by: QueueEntry) -> None:
    """Say that it is decided what becomes of a place; between queued requests no thread is changed for it."""
    if isinstance(place, CallbackEntry) and isinstance(by, CallbackEntry):
        by.followers.append(place)
    else:
        place.call()


def refuse(place: QueueEntry, error: BaseException) -> None:
    """End the wait of a place that was taken out of its line."""
    place.error = error
    place.call()


def expired() -> ApiError:
    """The answer to a request whose time is over."""
    return ApiError(ErrorCode.DEADLINE_EXCEEDED, "the request's timeout passed before the model could start on it")


def superseded() -> ApiError:
    """The answer to a request whose place a newer one of its stream has taken."""
    text = "a newer request of the same stream took this one's place; the model was not run"
    return ApiError(ErrorCode.SUPERSEDED, text)


def _refusal(code: ErrorCode, limit: int, wait_s: float) -> ApiError:
    if code is ErrorCode.SUPERSEDED:
        return superseded()
    if code is ErrorCode.DEADLINE_EXCEEDED:
        return expired()
    return ApiError(
        code,
        f"the queue of this model is full ({plural(limit, 'request waits', 'requests wait')}); try again later",
        retry_after_s=max(0.1, round(wait_s, 1)),
    )
