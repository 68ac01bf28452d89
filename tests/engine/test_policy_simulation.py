"""Simulate the server's scheduling policy under load, with discrete events.

Nothing here waits. Arrivals come from seeded generators or from worst-case patterns.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.policy import BatchingAdvisor, Entry, Flow
from pocketserve_wire import ErrorCode
from simulated_world import FOREVER, Fate, World


def poisson(rate: float, seconds: float, seed: int) -> Iterable[float]:
    """Return times of independent arrivals."""
    draw = random.Random(seed)
    time = 0.0
    while (time := time + draw.expovariate(rate)) < seconds:
        yield time


def bursts(rate: float, seconds: float, size: int) -> Iterable[float]:
    """Return as many arrivals on average, ``size`` at the same moment."""
    count = int(seconds * rate / size)
    return (number * size / rate for number in range(count) for _ in range(size))


# --- Overload

ARRIVALS = {
    "poisson": lambda: poisson(40, 100, 1),
    "bursts": lambda: bursts(40, 100, 200),
}


@pytest.mark.parametrize("timeouts", [0.35, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_goodput_stays_at_the_maximum_under_fourfold_load(arrivals, timeouts):
    """Goodput counts answers within the deadline.

    The model can make ten per second.
    """
    world = World(slots=2)
    queue = world.queue(0.1)
    for time in ARRIVALS[arrivals]():
        world.send(queue, time, timeouts)
    world.run()
    good = []
    for fate in world.answers():
        if fate.ended <= fate.entry.options.deadline + 1e-9:
            good.append(fate)
    # The model is idle between bursts that are further apart than any deadline.
    possible = (
        10 * 100 if arrivals == "poisson" else 20 * int(min(timeouts, 5.0) / 0.1 + 1e-9)
    )
    assert len(good) >= 0.95 * possible
    assert world.unanswered == 0


def test_rejections_are_immediate():
    world = World(slots=2)
    queue = world.queue(0.1, limit=8)
    for time in poisson(40, 50, 2):
        world.send(queue, time)
    world.run()
    refused = [fate for fate in world.fates if fate.code is ErrorCode.QUEUE_FULL]
    assert len(refused) > 1000
    assert all(fate.age == 0 for fate in refused)


@pytest.mark.parametrize("cameras", [1, 2, 5])
def test_each_camera_gets_fresh_answers(cameras):
    """Frames arrive at four times the model's speed, and each camera gets its share."""
    world = World(slots=2)
    queue = world.queue(0.1)
    for camera in range(cameras):
        for number in range(2000):
            world.send(queue, number / 40 + camera / 1000, stream=f"camera {camera}")
    world.run()
    answers = world.answers()
    assert max(fate.age for fate in answers) <= 0.1 * (cameras + 1) + 1e-9
    assert len(answers) >= 0.95 * 50 / 0.1
    by_camera = Counter(fate.entry.options.stream for fate in answers)
    assert max(by_camera.values()) - min(by_camera.values()) <= 2
    assert set(world.codes()) == {None, ErrorCode.SUPERSEDED}


@pytest.mark.parametrize("cameras", [1, 3, 40])
def test_many_streams_at_fourfold_load(cameras):
    """Frames arrive irregularly; no camera is rejected or starved."""
    world = World(slots=2)
    queue = world.queue(0.1)
    for camera in range(cameras):
        for time in poisson(40 / cameras, 100, 100 + camera):
            world.send(queue, time, stream=f"camera {camera}")
    world.run()
    answers = world.answers()
    assert set(world.codes()) == {None, ErrorCode.SUPERSEDED}
    assert len(answers) >= 0.95 * 100 / 0.1
    # A frame replaces its predecessor, so each camera waits for one round at most.
    assert max(fate.age for fate in answers) <= 0.1 * (cameras + 1) + 1e-9
    by_camera = Counter(fate.entry.options.stream for fate in answers)
    assert len(by_camera) == cameras
    assert max(by_camera.values()) <= 2 * min(by_camera.values()) + 2


@pytest.mark.parametrize("seed", range(5))
def test_holding_back_the_newest_frame_keeps_answers_fresh(
    seed,
):
    """A transport keeps a running stream's newest request and submits it at the end of
    the run.
    """

    def play(holding: bool) -> list[Fate]:
        world = World(slots=2)
        queue = world.queue(0.1)
        held: list[tuple[float, Entry]] = []

        def bring() -> None:
            if held:
                world._arrive(queue, held.pop()[1])

        def arrive(time: float) -> None:
            entry = Entry(RequestOptions(FOREVER, arrived=time, stream="camera"))
            if holding and not queue.idle:
                held[:] = [(time, entry)]
            else:
                world._arrive(queue, entry)

        finish = world._finish

        def finish_and_bring(*run: Any) -> None:
            finish(*run)
            bring()

        world._finish = finish_and_bring  # type: ignore[method-assign]
        for time in poisson(40, 60, seed):
            world.at(time, lambda time=time: arrive(time))
        world.run()
        return world.answers()

    kept = play(holding=True)
    waited = play(holding=False)
    assert [fate.entry.options.arrived for fate in kept] == [
        fate.entry.options.arrived for fate in waited
    ]
    assert [fate.ended for fate in kept] == [fate.ended for fate in waited]


@pytest.mark.parametrize("seed", range(5))
def test_dropping_superseded_requests_changes_no_answer(seed):
    """While an earlier request waits, a transport may drop an older one of the stream."""

    def play(passing_over: bool) -> list[tuple[float, float]]:
        draw = random.Random(seed)
        world = World(slots=2)
        time = 0.0
        queue = world.queue(0.1, limit=3)
        for _ in range(300):
            time += draw.expovariate(8.0)
            if draw.random() < 0.3:
                world.send(queue, time)
            burst = draw.randrange(1, 9)

            def arrive(time: float = time, burst: int = burst) -> None:
                for left in reversed(range(burst)):
                    if not (passing_over and left and "camera" in queue.streams):
                        world._arrive(
                            queue,
                            Entry(
                                RequestOptions(FOREVER, arrived=time, stream="camera")
                            ),
                        )

            world.at(time, arrive)
        world.run()
        return [(fate.arrived, fate.ended) for fate in world.answers()]

    assert play(passing_over=True) == play(passing_over=False)


def test_a_stream_progresses_beside_a_full_queue():
    """A newer frame keeps the older one's turn.

    Otherwise a busy model would never run it.
    """
    world = World(slots=2)
    queue = world.queue(0.1, limit=32)
    for time in poisson(40, 60, 3):
        world.send(queue, time, 5.0)
    for number in range(1800):
        world.send(queue, number / 30, 5.0, stream="camera")
    world.run()
    frames = [fate for fate in world.answers() if fate.entry.options.stream]
    assert len(frames) >= 60 / (33 * 0.1) - 3
    # The frame is at most one frame interval old, however long its entry has waited.
    assert all(
        fate.started - fate.arrived <= 1 / 30 + 1e-9
        for fate in frames
        if fate.arrived < 59.9
    )


def test_many_deadlines_at_once():
    """All deadlines pass at once.

    No late request starts, and the next one is served.
    """
    world = World(slots=2)
    queue = world.queue(0.1, limit=1024)
    for number in range(500):
        world.send(queue, number / 1000, 1.0 - number / 1000)
    late = world.send(queue, 1.0, 1.0)
    world.run()
    # Of ten runs in that second it may be the eleventh by a rounding error.
    assert world.codes()[None] in (
        11,
        12,
    )
    assert world.codes()[ErrorCode.DEADLINE_EXCEEDED] == 501 - world.codes()[None]
    assert next(fate for fate in world.fates if fate.entry is late).code is None


def test_a_wrong_run_time_estimate_starves_no_request():
    """The first run was very slow.

    Requests with shorter deadlines must still run.
    """
    seconds = iter([100.0])
    world = World(slots=2)
    queue = world.queue(lambda rows: next(seconds, 0.1))
    world.send(queue, 0.0)
    for number in range(200):
        world.send(queue, 100 + number / 20, 0.5)
    world.run()
    assert world.codes()[None] >= 0.9 * 10 * 10


def test_cancelled_requests_cost_nothing():
    draw = random.Random(4)
    world = World(slots=2)
    queue = world.queue(0.1)
    for time in poisson(40, 60, 5):
        entry = world.send(queue, time, 10.0)
        if draw.random() < 0.7:
            world.vanish(queue, entry, time + draw.random() * 2)
    world.run()
    assert world.codes()[ErrorCode.CANCELLED] > 500
    assert world.service[queue] >= 0.95 * 60
    assert world.unanswered == 0


def test_priorities_hold_under_overload():
    world = World(slots=2)
    queue = world.queue(0.1, limit=16)
    draw = random.Random(6)
    for time in poisson(40, 60, 7):
        world.send(queue, time, 5.0, rank=1 if draw.random() < 0.1 else 5)
    world.run()
    urgent = [fate for fate in world.fates if fate.entry.options.rank == 1]
    # 4 of 10 possible runs a second: the queue rarely grows beyond a few requests.
    assert all(fate.code is None for fate in urgent)
    assert sorted(fate.age for fate in urgent)[int(0.95 * len(urgent))] <= 0.5
    assert world.service[queue] >= 0.95 * 60


# --- Sharing


@pytest.mark.parametrize("instances", [1, 4])
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_slow_model_does_not_delay_a_fast_one(cores, instances):
    """A model with one-second runs is overloaded fourfold beside a rarely used one of
    10 ms.
    """
    world = World(slots=cores + 1)
    slow = world.queue(1.0, sessions=instances)
    fast = world.queue(0.01)
    for time in poisson(4 * instances, 100, 8):
        world.send(slow, time)
    for time in poisson(20, 100, 9):
        world.send(fast, time, 5.0)
    world.run(until=100)
    answers = world.answers(fast)
    assert len(answers) >= 0.99 * sum(fate.queue is fast for fate in world.fates)
    assert max(fate.age for fate in answers) <= 0.1
    assert world.service[slow] >= 0.95 * 100 * min(cores, instances) - 1


@pytest.mark.parametrize(
    "seconds",
    [
        (1.0, 0.01),
        (0.1, 0.1),
        (0.5, 0.03),
    ],
)
def test_two_busy_models_get_the_same_time(seconds):
    """One slot for both, as when something else uses the cores."""
    world = World(slots=1)
    queues = [world.queue(one) for one in seconds]
    for queue, one in zip(queues, seconds, strict=True):
        for time in poisson(4 / one, 100, 10):
            world.send(queue, time, 20.0)
    world.run(until=100)
    first, second = (world.service[queue] for queue in queues)
    assert abs(first - second) <= 2 * max(seconds) + 0.05 * 100
    assert first + second >= 0.97 * 100


def test_idle_flows_do_not_accumulate_credit():
    world = World(slots=1)
    busy = world.queue(0.1)
    back = world.queue(0.1)
    for number in range(4000):
        world.send(busy, number / 40, 10.0)
    for number in range(400):
        world.send(back, 50 + number / 40, 10.0)
    world.run(until=60)
    served = [fate for fate in world.answers() if fate.ended > 50]
    share = Counter(fate.queue is back for fate in served)
    assert abs(share[True] - share[False]) <= 4


def test_queues_of_one_flow_count_as_one():
    """Sequences with their own sessions do not multiply their model's share."""
    world = World(slots=1)
    flow = Flow()
    many = [world.queue(0.1, flow=flow) for _ in range(4)]
    other = world.queue(0.1)
    for queue in (*many, other):
        for number in range(2000):
            world.send(queue, number / 40, 20.0)
    world.run(until=50)
    assert abs(sum(world.service[queue] for queue in many) - world.service[other]) <= 2


def test_more_slots_take_effect_at_once():
    world = World(slots=1)
    queues = [world.queue(1.0) for _ in range(3)]
    for queue in queues:
        world.send(queue, 0.0)
    world.run(until=0.5)
    world.slots = world.sharing.slots = 4
    started = []
    while (found := world.sharing.next(0.5)) is not None:
        started.append(found[0])
    assert started == queues[1:]


# --- Batching


def crowd(
    cost: Callable[[int], float],
    advisor: BatchingAdvisor | None,
    seconds: float = 200.0,
) -> World:
    world = World(slots=2)
    queue = world.queue(cost, max_rows=8, advisor=advisor)
    for time in poisson(40, seconds, 11):
        world.send(queue, time, 5.0, key="same")
    world.run(until=seconds)
    return world


def test_batches_multiply_what_a_model_can_do():
    world = crowd(lambda rows: 0.08 + 0.02 * rows, BatchingAdvisor())
    assert len(world.answers()) >= 0.85 * 8 / 0.24 * 200
    assert world.runs[8] > world.runs[1]


def test_unprofitable_batches_are_abandoned():
    """Each change of size costs more than it saves.

    The alternative is found and kept.
    """
    world = crowd(lambda rows: 0.1 if rows == 1 else 0.15 * rows, BatchingAdvisor())
    assert len(world.answers()) >= 0.9 * 10 * 200  # includes the cost of the trials
    assert world.runs[1] > 10 * (world.runs.total() - world.runs[1])


def test_a_change_of_batching_cost_is_noticed():
    advisor = BatchingAdvisor()
    for together in (True, False) * 2:
        for _ in range(BatchingAdvisor.WINDOW + 1):
            advisor.note(
                8 if advisor.together else 1,
                0.8 if advisor.together else 0.2,
                advisor.together,
            )
        assert together in (True, False)
        if advisor.together and not advisor._samples and advisor._left:
            break
    assert advisor.together  # 0.1 s a row together, 0.2 s alone
    for _ in range(BatchingAdvisor.KEPT):
        advisor.note(8, 8.0, True)
    for _ in range(2 * (BatchingAdvisor.WINDOW + 1)):
        advisor.note(
            8 if advisor.together else 1,
            8.0 if advisor.together else 0.2,
            advisor.together,
        )
    assert not advisor.together


def test_only_compatible_requests_are_batched():
    world = World(slots=2)
    queue = world.queue(0.1, max_rows=8, max_bytes=100)
    world.send(queue, 0.0)
    keys = ["a", "b", "a", None, "a", "a"]
    entries = [world.send(queue, 0.01, key=key, rows=3, size=10) for key in keys]
    heavy = [world.send(queue, 0.02, key="c", size=60) for _ in range(2)]
    world.run()
    order = [(fate.entry, fate.started) for fate in world.answers()][1:]
    groups = [
        [t for t, _ in group]
        for _, group in itertools.groupby(order, key=lambda pair: pair[1])
    ]
    a1, b, a2, alone, a3, a4 = entries
    assert groups == [
        [a1, a2],
        [b],
        [alone],
        [a3, a4],
        [heavy[0]],
        [heavy[1]],
    ]


# --- Random workloads

EVENTS = st.tuples(
    st.sampled_from([0, 1, 2]),
    st.floats(0, 5),
    st.floats(0.01, 2),
    st.sampled_from([1, 5, 9]),
    st.sampled_from(["", "", "s", "t"]),
    st.sampled_from([None, "k", "l"]),
    st.one_of(st.none(), st.floats(0, 2)),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.lists(EVENTS, max_size=60))
def test_every_request_ends_once_and_no_slot_idles(slots, events):
    world = World(slots=slots)
    queues = [
        world.queue(0.3, limit=3, sessions=2),
        world.queue(0.05, limit=5, max_rows=4),
        world.queue(0.2, limit=1),
    ]
    for which, time, timeouts, rank, stream, key, gone in events:
        entry = world.send(
            queues[which], time, timeouts, rank=rank, stream=stream, key=key
        )
        if gone is not None:
            world.vanish(queues[which], entry, time + gone)
    world.run()
    assert (
        len(world.fates) == len(events) == len({id(fate.entry) for fate in world.fates})
    )
    assert world.unanswered == world.sharing.busy == 0
    assert not world.sharing.contenders
    assert [len(queue.idle) for queue in queues] == [2, 1, 1]
    assert all(
        fate.started is None or fate.started < fate.entry.options.deadline
        for fate in world.fates
    )
