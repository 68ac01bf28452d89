"""Each request in a model's queue ends once.

No session is lost or shared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.engine.engine import Engine
from pocketserve.engine.lifecycle.handle import EngineOptions
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.entries import Job
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import ModelQueue, Scheduler
from pocketserve_wire import ApiError, ErrorCode
from queue_entries import FunctionEntry

LATER = 1000.0


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Together:
    """Compatible requests with the same key run as one."""

    max_rows = 3

    def describe(self, entry: Any) -> tuple[str | None, int, int]:
        return entry.function.key, 1, 1

    def run(self, session: Any, entries: Sequence[Any]) -> tuple[list[Any], int]:
        outcomes: list[Any] = []
        for entry in entries:
            try:
                outcomes.append(entry.work(session))
            except ValueError as error:
                outcomes.append(error)
        return outcomes, 1


class Work:
    """A run that records itself and checks that it has its session alone."""

    def __init__(
        self, office: Office, number: int, key: str | None = None, fails: bool = False
    ) -> None:
        self.office = office
        self.number = number
        self.key = key
        self.fails = fails

    def __call__(self, session: Any) -> int:
        assert session not in self.office.in_use
        if self.fails:
            raise ValueError(self.number)
        return self.number


class Office:
    """Queues of one scheduler whose jobs the test runs in any order.

    Attributes:
        jobs: each must be run by one thread.
        ended: the outcome of each request by its number.
        in_use: sessions of current runs.
    """

    def __init__(
        self,
        queues: int = 1,
        sessions: int = 1,
        limit: int = 8,
        slots: int = 8,
        batches: bool = False,
    ) -> None:
        self.clock = Clock()
        self.scheduler = Scheduler(slots, self.clock)
        # No thread: a test expires deadlines itself.
        self.scheduler._thread = threading.current_thread()
        self.sessions = [[object() for _ in range(sessions)] for _ in range(queues)]
        batcher = None
        if batches:
            batcher = Together()
        self.queues = [
            ModelQueue(own, limit, self.clock, self.scheduler, batcher=batcher)
            for own in self.sessions
        ]
        self.jobs: list[Job] = []
        self.ended: dict[int, Any] = {}
        self.switches: dict[int, Cancellation] = {}
        self.in_use: set[Any] = set()

    def send(
        self,
        queue: int = 0,
        *,
        rank: int = 5,
        lasts: float = LATER,
        keeps: bool = True,
        **work: Any,
    ) -> int:
        """Submit a request; return its number."""
        number = len(self.switches) + 1
        switch = Cancellation()
        self.switches[number] = switch
        options = RequestOptions(self.clock.now + lasts, rank=rank, cancellation=switch)

        def end(outcome: Any) -> None:
            assert number not in self.ended
            failed = isinstance(outcome, ValueError)
            self.ended[number] = (
                "failed" if failed else getattr(outcome, "code", outcome)
            )

        own = Work(self, number, **work)
        self._add(
            self.queues[queue].submit(
                FunctionEntry(own, options, self.jobs.append, end, keeps_thread=keeps)
            )
        )
        return number

    def _add(self, job: Job | None) -> None:
        if job is not None:
            self.jobs.append(job)

    def step(self, which: int = 0) -> None:
        """Let one thread run its current job."""
        self._add(self.jobs.pop(which % len(self.jobs))())

    def hold(self, queue: int = 0) -> Any:
        """Start a run of another thread.

        Return the function that ends it, or None if it would wait.
        """
        entries = self.queues[queue]._entries
        session = self.scheduler.policy.start(entries)
        if session is None:
            return None
        self.in_use.add(session)

        def end() -> None:
            self.in_use.remove(session)
            for leader in self.scheduler.finish(entries, session, 0.001):
                leader.execute(leader.begin)

        return end

    def finish(self) -> None:
        """Run all jobs, including those that follow from them."""
        while self.jobs:
            self.step()


def test_a_thread_continues_with_the_next_request():
    office = Office()
    end = office.hold()
    assert [
        office.send(),
        office.send(),
        office.send(keeps=False),
    ] == [
        1,
        2,
        3,
    ]
    assert not office.jobs
    end()
    job = office.jobs.pop()
    following = job()
    # the thread itself gets the next request
    assert office.ended == {1: 1}
    assert not office.jobs
    assert following() is None
    assert office.ended == {1: 1, 2: 2}
    assert len(office.jobs) == 1  # which needs its own thread
    office.finish()
    assert office.ended == {
        1: 1,
        2: 2,
        3: 3,
    }


def test_another_thread_starts_the_next_run_after_a_batch():
    office = Office(batches=True)
    end = office.hold()
    for _ in range(5):
        office.send(key="k")
    end()
    assert office.jobs.pop()() is None
    assert office.ended == {
        1: 1,
        2: 2,
        3: 3,
    }
    assert len(office.jobs) == 1
    office.finish()
    assert office.ended == {number: number for number in range(1, 6)}


def test_a_failed_run_still_returns_the_next():
    office = Office()
    end = office.hold()
    office.send(fails=True)
    office.send()
    end()
    office.finish()
    assert office.ended == {1: "failed", 2: 2}


def test_a_newly_idle_session_is_used():
    office = Office()
    office.send()
    assert len(office.jobs) == 1
    office.finish()
    assert office.ended == {1: 1}


def test_a_full_queue_rejects_a_request_unless_it_is_urgent():
    office = Office(limit=2)
    end = office.hold()
    office.send()
    office.send()
    office.send()
    assert office.ended == {3: ErrorCode.QUEUE_FULL}
    office.send(rank=1)  # the last is evicted
    end()
    office.finish()
    assert office.ended == {
        1: 1,
        2: ErrorCode.QUEUE_FULL,
        3: ErrorCode.QUEUE_FULL,
        4: 4,
    }


def test_a_request_is_not_run_after_its_deadline():
    office = Office()
    end = office.hold()
    office.send(lasts=1.0)
    office.clock.now = 2.0
    office.scheduler.expire()
    office.scheduler.expire()
    assert office.ended == {1: ErrorCode.DEADLINE_EXCEEDED}
    assert not office.jobs
    end()
    assert office.send(lasts=0.0) == 2
    assert office.ended[2] is ErrorCode.DEADLINE_EXCEEDED


def test_a_cancelled_request_leaves_the_queue():
    office = Office()
    end = office.hold()
    office.switches[office.send()].cancel()
    assert office.ended == {1: ErrorCode.CANCELLED}
    assert office.queues[0].waiting == 0
    end()
    assert not office.jobs


def test_a_request_cancelled_while_it_is_enqueued_ends_once():
    office = Office()
    switch = Cancellation()
    ended = []
    end = office.hold()
    enqueue = office.scheduler.enqueue

    def cancelled_between(*arguments: Any) -> Any:
        switch.cancel()  # another thread closes the connection right now
        return enqueue(*arguments)

    office.scheduler.enqueue = cancelled_between  # type: ignore[method-assign]
    options = RequestOptions(LATER, cancellation=switch)
    entry = FunctionEntry(
        lambda session: None, options, office.jobs.append, ended.append
    )
    assert office.queues[0].submit(entry) is None
    [error] = ended
    assert isinstance(error, ApiError)
    assert error.code is ErrorCode.CANCELLED
    assert office.queues[0].waiting == 0
    end()
    assert not office.jobs


def test_a_finishing_thread_runs_a_request_without_a_thread():
    office = Office()
    ended = []
    end = office.hold()

    def no_thread(job: Job) -> None:
        raise RuntimeError("can't start new thread")

    for number in range(3):
        entry = FunctionEntry(
            lambda session: None, RequestOptions(LATER), no_thread, ended.append
        )
        assert office.queues[0].submit(entry) is None, number
    office.send()
    end_of_run = office.scheduler.policy
    assert end_of_run.busy == 1
    # A second session for the scheduler to assign.
    office.queues[0]._entries.idle.append(object())
    office.scheduler.start_waiting()
    assert ended == [None, None, None]
    end()
    office.finish()
    assert office.ended == {1: 1}


def test_many_runs_without_a_thread_do_not_recurse():
    office = Office(limit=2000)
    ended = []
    end = office.hold()

    def no_thread(job: Job) -> None:
        raise RuntimeError("can't start new thread")

    for number in range(1500):
        options = RequestOptions(LATER)
        entry = FunctionEntry(
            lambda session, number=number: number, options, no_thread, ended.append
        )
        assert office.queues[0].submit(entry) is None
    end_run: Any = office.send()
    assert end_run == 1
    held = office.queues[0]._entries
    session = next(iter(office.in_use))
    office.in_use.clear()
    leaders = office.scheduler.finish(held, session, 0.001)
    job: Job | None = leaders[0].begin
    while job is not None:
        job = job()
    assert ended == list(range(1500))
    assert end is not None
    office.finish()
    assert office.ended == {1: 1}


def test_a_fault_in_one_answer_affects_no_other():
    office = Office(batches=True)
    ended = []
    end = office.hold()

    def fault(outcome: Any) -> None:
        raise RuntimeError("the answer cannot be sent")

    for index, lasts in enumerate([1.0, 1.0, 2000.0, 2000.0, 2000.0]):
        work = Work(office, index, key="k")
        taken = fault if index in (0, 2) else ended.append
        entry = FunctionEntry(work, RequestOptions(lasts), office.jobs.append, taken)
        assert office.queues[0].submit(entry) is None
    office.clock.now = 1.0
    office.scheduler.expire()
    assert [error.code for error in ended] == [ErrorCode.DEADLINE_EXCEEDED]
    end()
    office.finish()
    assert ended[1:] == [3, 4]
    assert office.queues[0].waiting == 0
    assert office.scheduler.policy.busy == 0


def test_decoding_context_does_not_leak_into_the_next_run():
    office = Office()
    entries = office.queues[0]._entries
    session = office.scheduler.policy.start(entries)
    office.scheduler.finish(entries, session, 0.05, (), 0.05)
    assert entries.recent_run_s == 0.0
    assert entries.flow.service_time == 0.05


def test_a_request_freed_by_another_thread_starts_without_a_lock():
    cores = [0]
    free = []
    engine = Engine(EngineOptions(10**9, 60.0, 1, 4, 10**6), usable_cores=lambda: cores)
    queue = ModelQueue([object(), object()], 8, scheduler=engine._scheduler)
    assert engine._scheduler.policy.start(queue._entries) is not None

    def take() -> bool:
        taken = engine._table.lock.acquire(timeout=1.0)
        if taken:
            engine._table.lock.release()
        return taken

    def execute(
        job: Job,
    ) -> None:  # checked by another thread, since the lock is reentrant
        with ThreadPoolExecutor(1) as other:
            free.append(other.submit(take).result())

    options = RequestOptions(time.monotonic() + LATER)
    assert queue.submit(FunctionEntry(lambda session: None, options, execute)) is None
    cores = [0, 1]
    engine.sweep()
    assert free == [True]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.integers(0, 1),
            st.integers(1, 6),
            st.sampled_from([None, "k", "fails"]),
        ),
        st.tuples(st.just("step"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(1, 30)),
        st.tuples(st.just("expire")),
        st.tuples(st.just("wait"), st.floats(0.1, 3.0)),
        st.tuples(st.just("hold"), st.integers(0, 1)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("resize"), st.integers(1, 4)),
    ),
    max_size=60,
)


class Events:
    """Events of a random test, applied to an office."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._held: list[Callable[[], None]] = []

    def send(self, queue: int, rank: int, key: str | None) -> None:
        """Send a request.

        Some are kept by their thread, and some fail.
        """
        self._office.send(
            queue,
            rank=rank,
            lasts=2.0,
            keeps=rank % 2 == 0,
            key=key,
            fails=key == "fails",
        )

    def step(self, thread: int) -> None:
        """Let a thread run its current job, if there is one."""
        if self._office.jobs:
            self._office.step(thread)

    def cancel(self, request: int) -> None:
        """Cancel a request that exists."""
        if request in self._office.switches:
            self._office.switches[request].cancel()

    def expire(self) -> None:
        """Expire requests whose deadline has passed."""
        self._office.scheduler.expire()

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self._office.clock.now += seconds

    def hold(self, queue: int) -> None:
        """Start a run of another thread, unless it would wait."""
        end = self._office.hold(queue)
        if end is not None:
            self._held.append(end)

    def end(self, number: int) -> None:
        """End one of the runs of other threads."""
        if self._held:
            self._held.pop(number % len(self._held))()

    def resize(self, slots: int) -> None:
        """Change the number of slots."""
        self._office.scheduler.resize(slots)
        self._office.scheduler.start_waiting()

    def end_all(self) -> None:
        """End the runs of other threads."""
        for end in self._held:
            end()


@given(OPERATIONS, st.integers(1, 2), st.booleans())
@settings(max_examples=400, deadline=None)
def test_every_request_ends_once_in_any_order_of_events(operations, sessions, batches):
    office = Office(2, sessions, limit=4, slots=3, batches=batches)
    events = Events(office)
    for name, *arguments in operations:
        getattr(events, name)(*arguments)
    events.end_all()
    office.finish()
    # no run starts after its deadline, since the deadline thread expires it
    office.scheduler.expire()
    office.finish()
    assert sorted(office.ended) == sorted(office.switches)
    for queue, own in zip(office.queues, office.sessions, strict=True):
        assert queue.waiting == 0
        assert queue.flow.busy == 0
        assert sorted(map(id, queue._entries.idle)) == sorted(map(id, own))
    assert office.scheduler.policy.busy == 0
