"""The lane: one turn at a time per session, in order, bounded, never for two threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from pocketserve.engine.lane import Lane, Turn
from pocketserve_wire import ApiError, ErrorCode

TIMEOUT_S = 20.0


class ExclusiveSession:
    """A session that notices when two threads are in it at once."""

    def __init__(self) -> None:
        self._inside = threading.Lock()
        self.uses = 0
        self.overlaps = 0

    def use(self) -> None:
        if not self._inside.acquire(blocking=False):
            self.overlaps += 1
            return
        self.uses += 1
        sum(range(300))  # long enough for another thread to come in
        self._inside.release()


class Holder:
    """Work that occupies its session until it is told to go on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.proceed = threading.Event()

    def __call__(self, session: object) -> str:
        self.entered.set()
        assert self.proceed.wait(TIMEOUT_S)
        return "held"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as executor:
        yield executor


def later() -> float:
    return monotonic() + TIMEOUT_S


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that announces itself to nobody."""
    ends, pause = later(), threading.Event()
    while not condition():
        assert monotonic() < ends
        pause.wait(0.001)


def test_an_idle_session_runs_on_the_callers_thread():
    session = object()
    turn = Lane([session], 1).run(lambda given: (given, threading.get_ident()), later())
    assert turn == Turn((session, threading.get_ident()), turn.queue_ns, turn.run_ns)
    assert turn.queue_ns >= 0 and turn.run_ns >= 0


def test_a_full_line_refuses_at_once(pool):
    lane, holder = Lane([object()], queue_limit=2), Holder()
    futures = [pool.submit(lane.run, holder, later())]
    assert holder.entered.wait(TIMEOUT_S)
    futures += [pool.submit(lane.run, lambda session: "waited", later()) for _ in range(2)]
    until(lambda: lane.waiting == 2)

    with pytest.raises(ApiError) as refusal:
        lane.run(lambda session: "never", later())
    assert refusal.value.code is ErrorCode.QUEUE_FULL
    assert refusal.value.retry_after_s >= 0.1
    assert lane.waiting == 2

    holder.proceed.set()
    assert [future.result(TIMEOUT_S).result for future in futures] == ["held", "waited", "waited"]
    assert lane.run(lambda session: "free again", later()).result == "free again"


def test_the_advice_when_to_retry_grows_with_the_length_of_the_runs(pool):
    lane, holder = Lane([object()], queue_limit=1), Holder()
    lane._leave(lane._enter(later()), run_s=100.0)
    first = pool.submit(lane.run, holder, later())
    assert holder.entered.wait(TIMEOUT_S)
    second = pool.submit(lane.run, lambda session: None, later())
    until(lambda: lane.waiting == 1)
    with pytest.raises(ApiError) as refusal:
        lane.run(lambda session: None, later())
    assert refusal.value.retry_after_s == pytest.approx(40.0)  # two runs of a fifth of 100 s
    holder.proceed.set()
    assert first.result(TIMEOUT_S) and second.result(TIMEOUT_S)


def test_those_who_wait_are_served_in_order_of_arrival(pool):
    lane, holder, order = Lane([object()], queue_limit=10), Holder(), []
    futures = [pool.submit(lane.run, holder, later())]
    assert holder.entered.wait(TIMEOUT_S)
    for number in range(8):
        futures.append(pool.submit(lane.run, lambda session, number=number: order.append(number), later()))
        until(lambda number=number: lane.waiting == number + 1)
    holder.proceed.set()
    for future in futures:
        future.result(TIMEOUT_S)
    assert order == list(range(8))


def test_work_is_not_started_after_its_deadline():
    lane, started = Lane([object()], 1, clock=lambda: 100.0), []
    with pytest.raises(ApiError) as refusal:
        lane.run(started.append, deadline=100.0)
    assert refusal.value.code is ErrorCode.DEADLINE_EXCEEDED
    assert not started


def test_who_gives_up_waiting_leaves_the_line(pool):
    lane, holder, started = Lane([object()], queue_limit=1, clock=lambda: 100.0), Holder(), []
    first = pool.submit(lane.run, holder, 200.0)
    assert holder.entered.wait(TIMEOUT_S)
    with pytest.raises(ApiError) as refusal:
        lane.run(started.append, deadline=100.001)
    assert refusal.value.code is ErrorCode.DEADLINE_EXCEEDED
    assert lane.waiting == 0

    # The place in the line is free again, and the turn goes to whoever came after.
    second = pool.submit(lane.run, lambda session: "mine", 200.0)
    until(lambda: lane.waiting == 1)
    holder.proceed.set()
    assert first.result(TIMEOUT_S).result == "held"
    assert second.result(TIMEOUT_S).result == "mine"
    assert not started


def test_a_freed_session_goes_to_exactly_one_waiter(pool):
    session, holders = object(), [Holder() for _ in range(4)]
    lane = Lane([session], queue_limit=10)
    futures = []
    for count, holder in enumerate(holders):
        futures.append(pool.submit(lane.run, holder, later()))
        until(lambda count=count: holders[0].entered.is_set() and lane.waiting == count)
    for index, holder in enumerate(holders):
        assert holder.entered.wait(TIMEOUT_S)
        assert [other.entered.is_set() for other in holders] == [other <= index for other in range(4)]
        assert lane.waiting == 3 - index
        holder.proceed.set()
        futures[index].result(TIMEOUT_S)


@pytest.mark.parametrize("sessions", [1, 3])
def test_no_session_is_ever_used_by_two_threads(pool, sessions):
    used = [ExclusiveSession() for _ in range(sessions)]
    lane = Lane(used, queue_limit=1000)
    start = threading.Barrier(32)

    def hammer() -> None:
        start.wait(TIMEOUT_S)
        for _ in range(50):
            lane.run(ExclusiveSession.use, later())

    for future in [pool.submit(hammer) for _ in range(32)]:
        future.result(TIMEOUT_S)
    assert sum(session.overlaps for session in used) == 0
    assert sum(session.uses for session in used) == 32 * 50
    assert lane.waiting == 0


def test_deadlines_that_pass_while_turns_are_handed_over_lose_no_session(pool):
    used = [ExclusiveSession(), ExclusiveSession()]
    lane = Lane(used, queue_limit=8)
    start = threading.Barrier(24)

    def hammer(seed: int) -> list[str]:
        start.wait(TIMEOUT_S)
        ended = []
        for turn in range(60):
            try:
                lane.run(ExclusiveSession.use, monotonic() + (seed * 7 + turn) % 10 / 20_000)
                ended.append("done")
            except ApiError as error:
                ended.append(error.code.name)
        return ended

    ended = [end for future in [pool.submit(hammer, n) for n in range(24)] for end in future.result(TIMEOUT_S)]
    assert set(ended) <= {"done", "QUEUE_FULL", "DEADLINE_EXCEEDED"}
    assert sum(session.uses for session in used) == ended.count("done")
    assert sum(session.overlaps for session in used) == 0
    assert lane.waiting == 0
    both = threading.Barrier(2)
    meeting = [pool.submit(lane.run, lambda session: both.wait(TIMEOUT_S), later()) for _ in range(2)]
    assert {future.result(TIMEOUT_S).result for future in meeting} == {0, 1}


@pytest.mark.parametrize("error", [ValueError("bad input"), KeyboardInterrupt()])
def test_work_that_raises_frees_its_session(error):
    lane = Lane([object()], 1)

    def fail(session: object) -> None:
        raise error

    for _ in range(3):
        with pytest.raises(type(error)):
            lane.run(fail, later())
    assert lane.run(lambda session: "works", later()).result == "works"


def test_work_that_raises_hands_its_session_to_who_waits(pool):
    lane, holder = Lane([object()], 1), Holder()

    def fail(session: object) -> None:
        holder(session)
        raise RuntimeError("the model broke")

    first = pool.submit(lane.run, fail, later())
    assert holder.entered.wait(TIMEOUT_S)
    second = pool.submit(lane.run, lambda session: "next", later())
    until(lambda: lane.waiting == 1)
    holder.proceed.set()
    with pytest.raises(RuntimeError, match="the model broke"):
        first.result(TIMEOUT_S)
    assert second.result(TIMEOUT_S).result == "next"


def test_several_sessions_run_at_the_same_time(pool):
    sessions = [object(), object(), object()]
    lane, meeting = Lane(sessions, 1), threading.Barrier(3)

    def meet(session: object) -> object:
        meeting.wait(TIMEOUT_S)
        return session

    futures = [pool.submit(lane.run, meet, later()) for _ in range(3)]
    assert {id(future.result(TIMEOUT_S).result) for future in futures} == {id(session) for session in sessions}
