"""Drive the policy by recorded arrivals from a simulated phone's worst day.

``recorded_arrivals.json`` contains milliseconds by app, from the report of
``pocketserve simulate --scenario worst-day``: regular requests, and those that piled up
while the phone was frozen or the server was down. Played faster, it overloads the
models many times over in a real rhythm.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from pocketserve.engine.scheduling.policy import EntryQueue
from pocketserve_wire import ErrorCode
from simulated_world import World

RECORDED: dict[str, list[int]] = json.loads(
    Path(__file__).with_name("recorded_arrivals.json").read_text("ascii")
)
MODELS = {
    "keyboard": "petals",
    "scanner": "digits",
    "camera": "digits",
    "settings": "diabetes",
}
RUN_S = {
    "petals": 0.004,
    "digits": 0.02,
    "diabetes": 0.12,
}
"""A fast model, a medium one shared by two apps, and a slow one."""

PATIENCE_S = 2.0


def play(speed: float, slots: int) -> tuple[World, dict[str, EntryQueue]]:
    """Play the recording at a multiple of its speed."""
    world = World(slots=slots)
    queues = {model: world.queue(seconds) for model, seconds in RUN_S.items()}
    for app, times in RECORDED.items():
        for time in times:
            stream = {"stream": app} if app == "camera" else {}
            world.send(queues[MODELS[app]], time / 1e3 / speed, PATIENCE_S, **stream)
    world.run()
    return world, queues


def requested_work(speed: float) -> float:
    """Return the seconds of runs requested per second."""
    asked = sum(RUN_S[MODELS[app]] * len(times) for app, times in RECORDED.items())
    return asked * speed / (max(map(max, RECORDED.values())) / 1e3)


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0, 16.0])
def test_every_recorded_request_ends_once(speed: float, slots: int) -> None:
    world, _ = play(speed, slots)
    assert world.unanswered == 0
    assert len(world.fates) == sum(map(len, RECORDED.values()))
    assert set(world.codes()) <= {
        None,
        ErrorCode.SUPERSEDED,
        ErrorCode.QUEUE_FULL,
        ErrorCode.DEADLINE_EXCEEDED,
    }


def test_no_request_is_rejected_at_the_recorded_speed() -> None:
    world, queues = play(1.0, 2)
    assert set(world.codes()) <= {None, ErrorCode.SUPERSEDED}
    for model, queue in queues.items():
        ages = [fate.age for fate in world.answers(queue)]
        assert statistics.median(ages) <= 2 * RUN_S[model]


@pytest.mark.parametrize("speed", [7.0, 8.0, 16.0])
def test_overload_wastes_no_time_and_is_fair(
    speed: float,
) -> None:
    """Check goodput and fairness at a multiple of one slot's capacity."""
    world, queues = play(speed, 1)
    assert requested_work(speed) > 4
    last = max(map(max, RECORDED.values())) / 1e3 / speed
    served = sum(world.service.values())
    good = sum(
        RUN_S[model] for model, queue in queues.items() for _ in world.answers(queue)
    )
    # The slot is busy with requests that still have a client.
    assert served >= 0.95 * last and good == pytest.approx(served)
    for model, queue in queues.items():
        asked = sum(
            len(RECORDED[app])
            for app, served_by in MODELS.items()
            if served_by == model
        )
        assert world.service[queue] >= min(
            0.95 * asked * RUN_S[model], 0.9 * last / len(queues)
        )


@pytest.mark.parametrize("speed", [6.0, 8.0])
def test_the_fast_model_does_not_wait_for_other_queues(speed: float) -> None:
    """It requests less than its share, so it only waits for one run of each other model
    and its own burst.
    """
    world, queues = play(speed, 1)
    keyboard = [fate for fate in world.fates if fate.queue is queues["petals"]]
    assert {fate.code for fate in keyboard} == {None}
    ages = [fate.age for fate in keyboard]
    assert (
        statistics.median(ages)
        <= RUN_S["digits"] + RUN_S["diabetes"] + 10 * RUN_S["petals"]
    )


def test_a_recorded_camera_stays_fresh() -> None:
    world, _ = play(8.0, 1)
    ages = []
    for fate in world.answers():
        if fate.entry.options.stream == "camera":
            ages.append(fate.age)
    assert ages
    assert statistics.median(ages) <= RUN_S["diabetes"] + 12 * RUN_S["digits"]
