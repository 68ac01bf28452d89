"""A model's queue is ordered and bounded, with one run at a time per session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

import pytest

from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.options import RequestOptions, read_options
from pocketserve.engine.scheduling.policy import Entry, EntryQueue
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve_wire import ApiError, ErrorCode
from queue_entries import FunctionEntry, run

TIMEOUT_S = 120.0


class ExclusiveSession:
    """A session that detects two threads in it at once."""

    def __init__(self) -> None:
        self._inside = threading.Lock()
        self.uses = 0
        self.overlaps = 0

    def use(self) -> None:
        if not self._inside.acquire(blocking=False):
            self.overlaps += 1
            return
        self.uses += 1
        sum(range(300))  # long enough for another thread to enter
        self._inside.release()


class Holder:
    """Work that occupies its session until released."""

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


def later() -> RequestOptions:
    return RequestOptions(monotonic() + TIMEOUT_S)


def until(condition: Callable[[], bool]) -> None:
    """Poll until a condition is true."""
    deadline = monotonic() + TIMEOUT_S
    pause = threading.Event()
    while not condition():
        assert monotonic() < deadline
        pause.wait(0.001)


def test_an_idle_session_runs_on_the_calling_thread():
    session = object()
    entry = run(
        ModelQueue([session], 1), lambda given: (given, threading.get_ident()), later()
    )
    assert entry.result == (session, threading.get_ident())
    assert (entry.executions, entry.batch_rows) == (1, None)
    assert entry.queue_ns >= 0
    assert entry.run_ns >= 0


def test_a_full_queue_rejects_at_once(pool):
    queue = ModelQueue([object()], queue_limit=2)
    holder = Holder()
    futures = [pool.submit(run, queue, holder, later())]
    assert holder.entered.wait(TIMEOUT_S)
    futures += [
        pool.submit(run, queue, lambda session: "waited", later()) for _ in range(2)
    ]
    until(lambda: queue.waiting == 2)

    with pytest.raises(ApiError) as refusal:
        run(queue, lambda session: "never", later())
    assert refusal.value.code is ErrorCode.QUEUE_FULL
    assert refusal.value.retry_after_s >= 0.1
    assert queue.waiting == 2

    holder.proceed.set()
    assert [future.result(TIMEOUT_S).result for future in futures] == [
        "held",
        "waited",
        "waited",
    ]
    assert run(queue, lambda session: "free again", later()).result == "free again"


def test_the_retry_time_grows_with_the_length_of_the_runs(pool):
    queue = ModelQueue([object()], queue_limit=1)
    holder = Holder()
    queue._entries.recent_run_s = 20.0
    first = pool.submit(run, queue, holder, later())
    assert holder.entered.wait(TIMEOUT_S)
    second = pool.submit(run, queue, lambda session: None, later())
    until(lambda: queue.waiting == 1)
    with pytest.raises(ApiError) as refusal:
        run(queue, lambda session: None, later())
    # The running one and the waiting one.
    assert refusal.value.retry_after_s == pytest.approx(40.0)
    assert "(1 request waits)" in refusal.value.message
    holder.proceed.set()
    assert first.result(TIMEOUT_S)
    assert second.result(TIMEOUT_S)


def test_waiting_requests_are_served_in_order_of_arrival(pool):
    queue = ModelQueue([object()], queue_limit=10)
    holder = Holder()
    order = []
    futures = [pool.submit(run, queue, holder, later())]
    assert holder.entered.wait(TIMEOUT_S)
    for number in range(8):
        futures.append(
            pool.submit(
                run, queue, lambda session, number=number: order.append(number), later()
            )
        )
        until(lambda number=number: queue.waiting == number + 1)
    holder.proceed.set()
    for future in futures:
        future.result(TIMEOUT_S)
    assert order == list(range(8))


def test_work_is_not_started_after_its_deadline():
    queue = ModelQueue([object()], 1, clock=lambda: 100.0)
    started = []
    with pytest.raises(ApiError) as refusal:
        run(queue, started.append, RequestOptions(100.0))
    assert refusal.value.code is ErrorCode.DEADLINE_EXCEEDED
    assert not started


def test_a_waiting_request_fails_at_its_deadline(pool):
    now = [100.0]
    queue = ModelQueue([object()], queue_limit=1, clock=lambda: now[0])
    holder = Holder()
    started = []
    first = pool.submit(run, queue, holder, RequestOptions(200.0))
    assert holder.entered.wait(TIMEOUT_S)
    late = pool.submit(run, queue, started.append, RequestOptions(150.0))
    until(lambda: queue.waiting == 1)
    now[0] = 150.0
    queue.scheduler.expire()
    with pytest.raises(ApiError) as refusal:
        late.result(TIMEOUT_S)
    assert refusal.value.code is ErrorCode.DEADLINE_EXCEEDED
    assert queue.waiting == 0

    # There is room again, and the session goes to the next request.
    second = pool.submit(run, queue, lambda session: "mine", RequestOptions(200.0))
    until(lambda: queue.waiting == 1)
    holder.proceed.set()
    assert first.result(TIMEOUT_S).result == "held"
    assert second.result(TIMEOUT_S).result == "mine"
    assert not started


def test_one_thread_watches_deadlines_and_then_ends(pool):
    queue = ModelQueue([object()], queue_limit=8)
    holder = Holder()
    first = pool.submit(run, queue, holder, later())
    assert holder.entered.wait(TIMEOUT_S)
    late = [
        pool.submit(
            run, queue, lambda session: None, RequestOptions(monotonic() + 0.01 * n)
        )
        for n in (9, 1, 5)
    ]
    assert {fate(future) for future in late} == {ErrorCode.DEADLINE_EXCEEDED}
    holder.proceed.set()
    assert first.result(TIMEOUT_S).result == "held"
    until(lambda: queue.scheduler._thread is None)


def test_a_freed_session_goes_to_one_waiting_request(pool):
    session = object()
    holders = [Holder() for _ in range(4)]
    queue = ModelQueue([session], queue_limit=10)
    futures = []
    for count, holder in enumerate(holders):
        futures.append(pool.submit(run, queue, holder, later()))
        until(
            lambda count=count: holders[0].entered.is_set() and queue.waiting == count
        )
    for index, holder in enumerate(holders):
        assert holder.entered.wait(TIMEOUT_S)
        assert [other.entered.is_set() for other in holders] == [
            other <= index for other in range(4)
        ]
        assert queue.waiting == 3 - index
        holder.proceed.set()
        futures[index].result(TIMEOUT_S)


@pytest.mark.parametrize("sessions", [1, 3])
def test_no_session_is_ever_used_by_two_threads(pool, sessions):
    used = [ExclusiveSession() for _ in range(sessions)]
    queue = ModelQueue(used, queue_limit=1000)
    start = threading.Barrier(32)

    def hammer() -> None:
        start.wait(TIMEOUT_S)
        for _ in range(50):
            run(queue, ExclusiveSession.use, later())

    for future in [pool.submit(hammer) for _ in range(32)]:
        future.result(TIMEOUT_S)
    assert sum(session.overlaps for session in used) == 0
    assert sum(session.uses for session in used) == 32 * 50
    assert queue.waiting == 0


def assert_both_sessions_are_back(
    pool: ThreadPoolExecutor, queue: ModelQueue, used: list[ExclusiveSession], runs: int
) -> None:
    """Check that no run happened twice or in parallel, none waits, and both sessions
    are free.
    """
    assert sum(session.uses for session in used) == runs
    assert sum(session.overlaps for session in used) == 0
    assert queue.waiting == 0
    both = threading.Barrier(2)
    meeting = [
        pool.submit(run, queue, lambda session: both.wait(TIMEOUT_S), later())
        for _ in range(2)
    ]
    assert {future.result(TIMEOUT_S).result for future in meeting} == {0, 1}


def test_deadlines_during_a_handover_lose_no_session(pool):
    used = [ExclusiveSession(), ExclusiveSession()]
    queue = ModelQueue(used, queue_limit=8)
    start = threading.Barrier(24)

    def hammer(seed: int) -> list[str]:
        start.wait(TIMEOUT_S)
        ended = []
        for turn in range(60):
            try:
                run(
                    queue,
                    ExclusiveSession.use,
                    RequestOptions(monotonic() + (seed * 7 + turn) % 10 / 20_000),
                )
                ended.append("done")
            except ApiError as error:
                ended.append(error.code.name)
        return ended

    ended = [
        end
        for future in [pool.submit(hammer, n) for n in range(24)]
        for end in future.result(TIMEOUT_S)
    ]
    assert set(ended) <= {"done", "QUEUE_FULL", "DEADLINE_EXCEEDED"}
    assert_both_sessions_are_back(pool, queue, used, ended.count("done"))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad input"),
        KeyboardInterrupt(),
    ],
)
def test_work_that_raises_frees_its_session(error):
    queue = ModelQueue([object()], 1)

    def fail(session: object) -> None:
        raise error

    for _ in range(3):
        with pytest.raises(type(error)):
            run(queue, fail, later())
    assert run(queue, lambda session: "works", later()).result == "works"


def test_work_that_raises_passes_on_its_session(pool):
    queue = ModelQueue([object()], 1)
    holder = Holder()

    def fail(session: object) -> None:
        holder(session)
        raise RuntimeError("the model broke")

    first = pool.submit(run, queue, fail, later())
    assert holder.entered.wait(TIMEOUT_S)
    second = pool.submit(run, queue, lambda session: "next", later())
    until(lambda: queue.waiting == 1)
    holder.proceed.set()
    with pytest.raises(RuntimeError, match="the model broke"):
        first.result(TIMEOUT_S)
    assert second.result(TIMEOUT_S).result == "next"


def test_several_sessions_run_at_the_same_time(pool):
    sessions = [
        object(),
        object(),
        object(),
    ]
    queue = ModelQueue(sessions, 1)
    meeting = threading.Barrier(3)

    def meet(session: object) -> object:
        meeting.wait(TIMEOUT_S)
        return session

    futures = [pool.submit(run, queue, meet, later()) for _ in range(3)]
    assert {id(future.result(TIMEOUT_S).result) for future in futures} == {
        id(session) for session in sessions
    }


# --- Freshness, priority, cancellation


class Crowd:
    """A queue with one occupied session and requests waiting in a known order."""

    def __init__(self, pool: ThreadPoolExecutor, queue_limit: int = 10) -> None:
        self.queue, self.holder = ModelQueue([object()], queue_limit), Holder()
        self.order: list[str] = []
        self._pool = pool
        self.first = pool.submit(run, self.queue, self.holder, later())
        assert self.holder.entered.wait(TIMEOUT_S)

    def enter(
        self, name: str, *, waits: bool = True, **terms: object
    ) -> Future[FunctionEntry]:
        before = self.queue.waiting
        work = lambda session: self.order.append(name)  # noqa: E731
        future = self._pool.submit(
            run, self.queue, work, RequestOptions(monotonic() + TIMEOUT_S, **terms)
        )
        until(lambda: future.done() or self.queue.waiting == before + waits)
        return future

    def go(self, *futures: Future[FunctionEntry]) -> list[str]:
        """Run all; return their order."""
        self.holder.proceed.set()
        for future in (self.first, *futures):
            future.result(TIMEOUT_S)
        return self.order


def fate(future: Future[FunctionEntry]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        future.result(TIMEOUT_S)
    return caught.value.code


def test_the_newest_request_of_a_stream_replaces_the_waiting_one(pool):
    crowd = Crowd(pool)
    old = crowd.enter("old", stream="camera", arrived=1.0)
    other = crowd.enter("other", stream="microphone", arrived=2.0)
    plain = crowd.enter("plain")
    new = pool.submit(
        run,
        crowd.queue,
        lambda session: crowd.order.append("new"),
        RequestOptions(later().deadline, stream="camera", arrived=3.0),
    )
    assert fate(old) is ErrorCode.SUPERSEDED
    assert crowd.go(other, plain, new) == ["new", "other", "plain"]


def test_a_late_thread_does_not_restore_an_old_frame(pool):
    crowd = Crowd(pool)
    new = crowd.enter("new", stream="camera", arrived=2.0)
    assert (
        fate(crowd.enter("old", stream="camera", arrived=1.0)) is ErrorCode.SUPERSEDED
    )
    assert crowd.go(new) == ["new"]


def test_a_stream_needs_one_queue_entry(pool):
    crowd = Crowd(pool, queue_limit=1)
    frames = []
    for number in range(2):
        frames.append(
            crowd.enter(str(number), waits=number == 0, stream="camera", arrived=number)
        )
    assert fate(frames[0]) is ErrorCode.SUPERSEDED
    assert fate(crowd.enter("plain")) is ErrorCode.QUEUE_FULL
    assert crowd.go(frames[1]) == ["1"]


def test_a_running_request_of_a_stream_finishes(pool):
    queue = ModelQueue([object()], 1)
    holder = Holder()
    first = pool.submit(
        run,
        queue,
        holder,
        RequestOptions(later().deadline, stream="camera", arrived=1.0),
    )
    assert holder.entered.wait(TIMEOUT_S)
    second = pool.submit(
        run,
        queue,
        lambda session: "next",
        RequestOptions(later().deadline, stream="camera", arrived=2.0),
    )
    until(lambda: queue.waiting == 1)
    holder.proceed.set()
    assert [first.result(TIMEOUT_S).result, second.result(TIMEOUT_S).result] == [
        "held",
        "next",
    ]


def test_lower_ranks_go_first(pool):
    crowd = Crowd(pool)
    futures = [
        crowd.enter(f"{rank}{letter}", rank=rank)
        for letter in "ab"
        for rank in (5, 9, 1)
    ]
    assert crowd.go(*futures) == ["1a", "1b", "5a", "5b", "9a", "9b"]


def test_an_urgent_request_enters_a_full_queue(pool):
    crowd = Crowd(pool, queue_limit=2)
    kept = crowd.enter("kept")
    last = crowd.enter("last")
    urgent = crowd.enter("urgent", waits=False, rank=1)
    assert fate(last) is ErrorCode.QUEUE_FULL
    assert fate(crowd.enter("background", rank=9)) is ErrorCode.QUEUE_FULL
    assert crowd.go(urgent, kept) == ["urgent", "kept"]


def test_a_cancelled_request_ends_at_once(pool):
    crowd = Crowd(pool)
    switch = Cancellation()
    given_up = crowd.enter("given up", cancellation=switch)
    stays = crowd.enter("stays")
    switch.cancel()
    assert fate(given_up) is ErrorCode.CANCELLED
    assert crowd.queue.waiting == 1
    assert fate(crowd.enter("too late", cancellation=switch)) is ErrorCode.CANCELLED
    assert crowd.go(stays) == ["stays"]
    switch.cancel()  # no effect after its end


def test_a_running_request_is_not_cancelled(pool):
    queue = ModelQueue([object()], 1)
    holder = Holder()
    switch = Cancellation()
    running = pool.submit(
        run, queue, holder, RequestOptions(later().deadline, cancellation=switch)
    )
    assert holder.entered.wait(TIMEOUT_S)
    switch.cancel()
    holder.proceed.set()
    assert running.result(TIMEOUT_S).result == "held"


def test_cancelling_during_a_handover_loses_no_session(pool):
    used = [ExclusiveSession(), ExclusiveSession()]
    queue = ModelQueue(used, queue_limit=64)
    start = threading.Barrier(20)

    def hammer(seed: int) -> list[str]:
        start.wait(TIMEOUT_S)
        ended = []
        for turn in range(60):
            switch = Cancellation()
            canceller = threading.Thread(target=switch.cancel)
            stream = ""
            if turn % 2:
                stream = "s" * (seed % 3)
            if turn % 3:
                canceller.start()
            try:
                terms = RequestOptions(
                    later().deadline,
                    cancellation=switch,
                    stream=stream,
                    arrived=monotonic(),
                )
                run(queue, ExclusiveSession.use, terms)
                ended.append("done")
            except ApiError as error:
                ended.append(error.code.name)
            if turn % 3:
                canceller.join(TIMEOUT_S)
        return ended

    ended = [
        end
        for future in [pool.submit(hammer, n) for n in range(20)]
        for end in future.result(60)
    ]
    assert set(ended) <= {"done", "CANCELLED", "SUPERSEDED"}
    assert_both_sessions_are_back(pool, queue, used, ended.count("done"))


def test_a_full_queue_is_detected_before_work_on_a_request(pool):
    crowd = Crowd(pool, queue_limit=1)
    crowd.queue.check_room(5, "")
    waits = crowd.enter("waits")
    with pytest.raises(ApiError) as refusal:
        crowd.queue.check_room(5, "")
    assert refusal.value.code is ErrorCode.QUEUE_FULL
    crowd.queue.check_room(1, "")
    crowd.queue.check_room(5, "camera")
    assert crowd.go(waits) == ["waits"]


def test_streams_of_two_clients_do_not_replace_each_other() -> None:
    """Streams are separate even under the same name."""
    queue = EntryQueue([], limit=4)
    options = [
        read_options(
            {"stream": "camera"}, owner=owner, longest_wait=60.0, clock=lambda: 1.0
        )
        for owner in ("a", "b")
    ]
    assert [queue.enqueue(Entry(option), 1.0) for option in options] == [None, None]
    newer = read_options(
        {"stream": "camera"}, owner="a", longest_wait=60.0, clock=lambda: 2.0
    )
    evicted = queue.enqueue(Entry(newer), 2.0)
    assert evicted is not None
    assert evicted[0].options is options[0]
    assert evicted[1] is ErrorCode.SUPERSEDED
