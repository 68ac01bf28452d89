"""Queued requests in a lane: each is begun once, however its end comes about, and no session is lost or used twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.engine.engine import Engine
from pocketserve.engine.lifecycle.handle import EngineOptions
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.entries import CallbackEntry
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import ModelQueue, Scheduler
from pocketserve_wire import ApiError, ErrorCode

LATER = 1000.0


class Clock:
    """Time as a test wants it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Together:
    """Any two requests of one work's key run as one."""

    max_rows = 3

    def describe(self, work: Any) -> tuple[str | None, int, int]:
        return getattr(work, "key", None), 1, 1

    def run(self, session: Any, works: Sequence[Any]) -> tuple[list[Any], int]:
        outcomes: list[Any] = []
        for work in works:
            try:
                outcomes.append(work(session))
            except ValueError as error:
                outcomes.append(error)
        return outcomes, 1


class Work:
    """A run that notes that it was made, alone on its session."""

    def __init__(self, office: Office, number: int, key: str | None = None, fails: bool = False) -> None:
        self.office, self.number, self.key, self.fails = office, number, key, fails

    def __call__(self, session: Any) -> int:
        assert session not in self.office.in_use
        if self.fails:
            raise ValueError(self.number)
        return self.number


class Office:
    """Lanes of one scheduler, and the queued requests in them, carried out by whom the test wants and when it wants.

    Attributes:
        begun: lists of queued requests, each of which one thread has to carry out.
        ended: what became of each queued request, by its number.
        in_use: sessions that somebody runs on.
    """

    def __init__(
        self, lanes: int = 1, sessions: int = 1, limit: int = 8, slots: int = 8, batches: bool = False
    ) -> None:
        self.clock = Clock()
        scheduler = Scheduler(slots, self.clock)
        self.sessions = [[object() for _ in range(sessions)] for _ in range(lanes)]
        batcher = Together() if batches else None
        self.lanes = [ModelQueue(own, limit, self.clock, scheduler, batcher=batcher) for own in self.sessions]
        self.begun: list[list[CallbackEntry]] = []
        self.ended: dict[int, Any] = {}
        self.switches: dict[int, Cancellation] = {}
        self.errands: dict[int, tuple[ModelQueue, CallbackEntry]] = {}
        self.in_use: set[Any] = set()
        self._count = 0

    def send(self, lane: int = 0, *, rank: int = 5, lasts: float = LATER, **work: Any) -> int:
        """One more queued request; its number."""
        self._count += 1
        number, switch = self._count, Cancellation()
        terms = RequestOptions(self.clock.now + lasts, rank=rank, cancellation=switch)
        own = Work(self, number, **work)
        target = self.lanes[lane]
        errand = CallbackEntry(own, terms, target.describe(own), lambda begun: self.begun.append([begun]))
        self.switches[number], self.errands[number] = switch, (target, errand)
        try:
            target.enter(errand, terms)
        except ApiError as error:
            self._end(number, error.code)
        return number

    def step(self, which: int = 0) -> None:
        """One of the threads carries out the queued request that it is at."""
        mine = self.begun.pop(which % len(self.begun))
        errand = mine.pop(0)
        number = errand.work.number  # type: ignore[attr-defined]
        lane, _ = self.errands[number]
        try:
            self._end(number, lane.run_entry(errand).result)
        except ApiError as error:
            self._end(number, error.code)
        except ValueError:
            self._end(number, "failed")
        mine += errand.followers  # the list is kept, for tests to look at
        if mine:
            self.begun.append(mine)

    def hold(self, lane: int = 0) -> Any:
        """A run that a thread makes for itself; the result ends it. None: it would have to wait."""
        target = self.lanes[lane]
        session = target.scheduler.sharing.start(target._line)
        if session is None:
            return None
        self.in_use.add(session)

        def end() -> None:
            self.in_use.remove(session)
            for leader in target.scheduler.finish(target._line, session, 0.001):
                leader.call()

        return end

    def finish(self) -> None:
        """Carry out all that is begun, and all that follows."""
        while self.begun:
            self.step()

    def _end(self, number: int, how: Any) -> None:
        assert number not in self.ended
        self.ended[number] = how


def test_the_thread_that_carried_out_one_goes_on_with_the_next_while_the_line_is_full():
    office = Office(limit=2)
    end = office.hold()
    assert [office.send(), office.send()] == [1, 2] and not office.begun
    end()
    office.send()
    office.step()
    [mine] = office.begun
    assert office.ended == {1: 1} and office.errands[1][1].followers == [office.errands[2][1]]
    office.step()  # nobody came meanwhile
    assert office.ended == {1: 1, 2: 2} and office.errands[2][1].followers == [] and office.begun != [mine]
    office.step()
    assert office.ended == {1: 1, 2: 2, 3: 3} and not office.begun


def test_the_next_is_begun_elsewhere_after_a_batch_whose_answers_are_to_be_sent():
    office = Office(batches=True)
    end = office.hold()
    for _ in range(5):
        office.send(key="k")
    end()
    office.step()  # three as one: two of them follow to be answered, and the other two are begun by another thread
    assert office.ended == {1: 1} and sorted(map(len, office.begun)) == [1, 2]
    office.finish()
    assert office.ended == {number: number for number in range(1, 6)}


def test_who_fails_still_says_who_follows():
    office = Office()
    end = office.hold()
    office.send(fails=True)
    office.send()
    end()
    office.finish()
    assert office.ended == {1: "failed", 2: 2}


def test_a_session_that_became_idle_meanwhile_is_used():
    office = Office()
    office.send()
    assert len(office.begun) == 1
    office.finish()
    assert office.ended == {1: 1}


def test_a_full_line_refuses_an_errand_unless_it_is_urgent():
    office = Office(limit=2)
    end = office.hold()
    office.send()
    office.send()
    office.send()
    assert office.ended == {3: ErrorCode.QUEUE_FULL}
    office.send(rank=1)  # the last gives way
    end()
    office.finish()
    assert office.ended == {1: 1, 2: ErrorCode.QUEUE_FULL, 3: ErrorCode.QUEUE_FULL, 4: 4}


def test_an_errand_is_not_run_after_its_deadline():
    office = Office()
    end = office.hold()
    number = office.send(lasts=1.0)
    office.clock.now = 2.0
    lane, errand = office.errands[number]
    lane.expire(errand)
    lane.expire(errand)
    office.step()
    assert office.ended == {1: ErrorCode.DEADLINE_EXCEEDED} and not office.begun
    end()
    assert office.send(lasts=0.0) == 2 and office.ended[2] is ErrorCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("early", [False, True])
def test_a_cancelled_errand_leaves_the_line(early):
    office = Office()
    end = office.hold()
    number = office.send()
    office.switches[number].cancel()
    if early:
        end()
    office.step()
    assert office.ended == {1: ErrorCode.CANCELLED} and office.lanes[0].waiting == 0


def test_an_errand_cancelled_while_it_joins_is_begun_once():
    office, switch = Office(), Cancellation()
    end = office.hold()
    lane, begun = office.lanes[0], []
    terms = RequestOptions(LATER, cancellation=switch)
    errand = CallbackEntry(lambda session: None, terms, lane.describe(None), begun.append)
    join = lane._scheduler.join

    def cancelled_between(*arguments: Any) -> Any:
        switch.cancel()  # another thread closes the connection just now
        return join(*arguments)

    lane._scheduler.join = cancelled_between  # type: ignore[method-assign]
    lane.enter(errand, terms)
    assert begun == [errand] and lane.waiting == 0
    with pytest.raises(ApiError) as refusal:
        lane.run_entry(errand)
    assert refusal.value.code is ErrorCode.CANCELLED
    end()


def test_whom_another_core_gives_a_turn_is_begun_under_no_lock():
    cores, free = [0], []
    engine = Engine(EngineOptions(10**9, 60.0, 1, 4, 10**6), usable_cores=lambda: cores)
    lane = ModelQueue([object(), object()], 8, scheduler=engine._scheduler)
    assert engine._scheduler.sharing.start(lane._line) is not None

    def take() -> bool:
        taken = engine._slots.lock.acquire(timeout=1.0)
        if taken:
            engine._slots.lock.release()
        return taken

    def begin(errand: CallbackEntry) -> None:  # another thread asks, since the lock lets its own holder in
        with ThreadPoolExecutor(1) as other:
            free.append(other.submit(take).result())

    terms = RequestOptions(time.monotonic() + LATER)
    lane.enter(CallbackEntry(lambda session: None, terms, lane.describe(None), begin), terms)
    cores = [0, 1]
    engine.sweep()
    assert free == [True]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 6), st.sampled_from([None, "k", "fails"])),
        st.tuples(st.just("step"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(1, 30)),
        st.tuples(st.just("expire"), st.integers(1, 30)),
        st.tuples(st.just("wait"), st.floats(0.1, 3.0)),
        st.tuples(st.just("hold"), st.integers(0, 1)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("resize"), st.integers(1, 4)),
    ),
    max_size=60,
)


@given(OPERATIONS, st.integers(1, 2), st.booleans())
@settings(max_examples=400, deadline=None)
def test_every_errand_ends_once_whatever_happens_in_whichever_order(operations, sessions, batches):
    office = Office(2, sessions, limit=4, slots=3, batches=batches)
    held: list[Callable[[], None]] = []
    for name, *arguments in operations:
        if name == "send":
            lane, rank, key = arguments
            office.send(lane, rank=rank, lasts=2.0, key=key, fails=key == "fails")
        elif name == "step" and office.begun:
            office.step(arguments[0])
        elif name == "cancel" and arguments[0] in office.switches:
            office.switches[arguments[0]].cancel()
        elif name == "expire" and arguments[0] in office.errands:
            lane, errand = office.errands[arguments[0]]
            if errand.deadline <= office.clock.now:
                lane.expire(errand)
        elif name == "wait":
            office.clock.now += arguments[0]
        elif name == "hold" and (end := office.hold(arguments[0])) is not None:
            held.append(end)
        elif name == "end" and held:
            held.pop(arguments[0] % len(held))()
        elif name == "resize":
            for leader in office.lanes[0].scheduler.resize(arguments[0]):
                leader.call()
    for end in held:
        end()
    office.finish()
    for lane, errand in office.errands.values():  # nobody is started after their deadline: somebody must say so
        lane.expire(errand)
    office.finish()
    assert sorted(office.ended) == sorted(office.errands)
    for lane, own in zip(office.lanes, office.sessions, strict=True):
        assert lane.waiting == 0 and lane.account.busy == 0
        assert sorted(map(id, lane._line.idle)) == sorted(map(id, own))
    assert office.lanes[0].scheduler.sharing.busy == 0
