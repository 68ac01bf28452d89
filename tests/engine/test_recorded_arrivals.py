"""The policy driven by recorded arrivals: when four apps asked a server in a simulated phone's worst day.

``recorded_arrivals.json`` holds milliseconds by app, from the report of ``pocketserve simulate --scenario worst-day``:
what came in evenly, and what had piled up while the phone was frozen and the server was dead. Played faster it is a
load of many times what the models can do, with the rhythm of a real one.
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
RUN_S = {"petals": 0.004, "digits": 0.02, "diabetes": 0.12}
"""A fast model, a middling one that two apps share, and a slow one."""

PATIENCE_S = 2.0


def play(speed: float, slots: int) -> tuple[World, dict[str, EntryQueue]]:
    """The recording, so many times faster."""
    world = World(slots=slots)
    queues = {model: world.queue(seconds) for model, seconds in RUN_S.items()}
    for app, times in RECORDED.items():
        for time in times:
            stream = {"stream": app} if app == "camera" else {}
            world.send(queues[MODELS[app]], time / 1e3 / speed, PATIENCE_S, **stream)
    world.run()
    return world, queues


def work(speed: float) -> float:
    """Seconds of runs that are asked for in a second."""
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


def test_as_it_was_recorded_nobody_is_refused() -> None:
    world, queues = play(1.0, 2)
    assert set(world.codes()) <= {None, ErrorCode.SUPERSEDED}
    for model, queue in queues.items():
        ages = [fate.age for fate in world.answers(queue)]
        assert statistics.median(ages) <= 2 * RUN_S[model]


@pytest.mark.parametrize("speed", [7.0, 8.0, 16.0])
def test_many_times_faster_no_time_is_lost_and_every_model_gets_its_share(
    speed: float,
) -> None:
    """Goodput and fairness at a multiple of what one slot can do."""
    world, queues = play(speed, 1)
    assert work(speed) > 4
    last = max(map(max, RECORDED.values())) / 1e3 / speed
    served = sum(world.service.values())
    good = sum(
        RUN_S[model] for model, queue in queues.items() for _ in world.answers(queue)
    )
    assert served >= 0.95 * last and good == pytest.approx(
        served
    )  # the slot is busy, with what somebody waits for
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
def test_the_fast_model_waits_for_no_queue_of_the_others(speed: float) -> None:
    """It asks for less than its share, so it waits for a run of each other, which nothing interrupts, and its burst."""
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
    ages = [
        fate.age for fate in world.answers() if fate.entry.options.stream == "camera"
    ]
    assert ages and statistics.median(ages) <= RUN_S["diabetes"] + 12 * RUN_S["digits"]
